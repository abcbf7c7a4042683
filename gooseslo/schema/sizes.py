"""The nearest legal numbers to one that is not, for what an error advises."""

from __future__ import annotations


def divisors(number: int) -> list[int]:
    """Every divisor, ascending."""
    small = [size for size in range(1, int(number**0.5) + 1) if number % size == 0]
    return sorted({*small, *(number // size for size in small)})


def nearest_multiples(number: int, unit: int, limit: int | None = None) -> str:
    """The multiples of `unit` on both sides of `number`, in words; none above `limit`."""
    below = number - number % unit
    multiples = [multiple for multiple in (below, below + unit) if multiple and (limit is None or multiple <= limit)]
    return " or ".join(map(str, multiples))


def nearest_numbers(number: int, legal: list[int]) -> str:
    """The legal numbers next to `number` on both sides, in words."""
    below = [candidate for candidate in legal if candidate < number][-1:]
    above = [candidate for candidate in legal if candidate >= number][:1]
    return " or ".join(str(candidate) for candidate in below + above)
