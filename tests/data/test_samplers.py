"""Samplers for one's own loop: the same indices on all replicas, each index once, a new order every pass."""

import tracemalloc
from itertools import chain

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, WeightedRandomSampler

from gooseslo.data import DistributedProxySampler, InfiniteDataLoader
from gooseslo.errors import DataError


def passes(replicas, *, sampler=None, num=6, epochs=3, **options):
    """[epoch][rank]: the indices."""
    found = []
    for epoch in range(epochs):
        of_epoch = []
        for rank in range(replicas):
            torch.manual_seed(1000 * epoch + rank)  # ranks' global generators need not agree
            proxy = DistributedProxySampler(sampler or SequentialSampler(range(num)), replicas, rank, **options)
            proxy.set_epoch(epoch)
            of_epoch.append(list(proxy))
            assert len(of_epoch[-1]) == len(proxy)
        found.append(of_epoch)
    return found


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_each_epoch_is_a_permutation_in_disjoint_parts(replicas):
    epochs = passes(replicas)
    assert all(sorted(chain(*ranks)) == list(range(6)) for ranks in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert passes(replicas) == epochs and passes(replicas, seed=1) != epochs


@pytest.mark.parametrize(
    "sampler", [RandomSampler(range(12)), WeightedRandomSampler([1.0] * 12, 12, replacement=False)]
)
@pytest.mark.parametrize("shuffle", [True, False])
def test_a_sampler_that_draws_gives_all_replicas_the_same(sampler, shuffle):
    """Else replicas would share some indices and miss others."""
    epochs = passes(3, sampler=sampler, shuffle=shuffle)
    assert all(sorted(chain(*ranks)) == list(range(12)) for ranks in epochs)
    assert epochs[0] != epochs[1]


def test_it_leaves_torchs_generators_as_they_were(monkeypatch):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    monkeypatch.setattr(torch, "manual_seed", lambda seed: pytest.fail("those of the devices are seeded too"))
    list(DistributedProxySampler(RandomSampler(range(9)), 2, 0))
    assert torch.equal(torch.rand(3), expected)


def test_an_order_is_kept_without_shuffle_and_uneven_ends_are_filled_or_dropped():
    assert passes(2, num=5, shuffle=False, epochs=1) == [[[0, 2, 4], [1, 3, 0]]]
    assert passes(2, num=5, shuffle=False, drop_last=True, epochs=1) == [[[0, 2], [1, 3]]]
    assert passes(4, num=1, epochs=1) == [[[0]] * 4]
    assert passes(2, num=0, epochs=1) == [[[], []]]
    assert list(DistributedProxySampler(range(3), shuffle=False)) == [0, 1, 2]  # no process group: all of it
    with pytest.raises(DataError, match="rank=2"):
        DistributedProxySampler(range(3), 2, 2)


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("by_batch", [False, True])
def test_an_endless_loader_goes_on_to_the_next_epoch(replicas, by_batch):
    def loader(rank, epoch=0):
        proxy = DistributedProxySampler(SequentialSampler(range(6)), replicas, rank)
        options = {"batch_sampler": BatchSampler(proxy, 2, False)} if by_batch else {"sampler": proxy, "batch_size": 2}
        return InfiniteDataLoader(DataLoader(range(6), **options), epoch=epoch)

    loaders = [loader(rank) for rank in range(replicas)]
    batches = len(loaders[0])

    def one_pass(loaders):
        return list(chain(*(next(each).tolist() for each in loaders for _ in range(batches))))

    epochs = [one_pass(loaders) for _ in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(6))] * 3
    assert len(set(map(tuple, epochs))) == 3
    later = [loader(rank, epoch=2) for rank in range(replicas)]
    assert one_pass(later) == epochs[2]


def test_a_for_loop_over_it_does_not_end():
    seen = []
    for batch in InfiniteDataLoader(DataLoader([1, 2, 3], batch_size=2)):
        seen += batch.tolist()
        if len(seen) > 8:
            break
    assert seen == [1, 2, 3] * 3


def test_a_loader_without_a_batch_is_an_error_and_no_hang():
    with pytest.raises(DataError, match="no batch"):
        next(InfiniteDataLoader(DataLoader([1], batch_size=2, drop_last=True)))


def looped(replicas, batch_size, *, num=23, consumed=0, **options):
    """One loop's loaders, of all its ranks."""
    return [
        InfiniteDataLoader(
            DataLoader(
                range(num), batch_size, sampler=DistributedProxySampler(range(num), replicas, rank, seed=3, **options)
            ),
            consumed_samples=consumed,
        )
        for rank in range(replicas)
    ]


def steps(loaders, num_steps):
    """The samples of some steps in their global order, and what each rank says is consumed."""
    given = []
    for _ in range(num_steps):
        batches = [next(loader).tolist() for loader in loaders]
        given += [sample for row in zip(*batches, strict=True) for sample in row]
    (consumed,) = {loader.consumed_samples for loader in loaders}
    return given, consumed


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_loop_goes_on_within_an_epoch_at_another_number_of_replicas_and_batch_size(shuffle):
    """Every epoch of 24 samples is whole however often the loop is stopped, and in the order of one that was not."""
    straight, _ = steps(looped(1, 4, num=24, shuffle=shuffle), 18)
    assert [sorted(straight[begin : begin + 24]) for begin in (0, 24, 48)] == [list(range(24))] * 3
    given, consumed = [], 0
    for replicas, batch_size, num_steps in (
        (2, 2, 3),
        (4, 1, 2),
        (1, 4, 1),
        (3, 2, 2),
        (2, 6, 1),
        (1, 6, 2),
        (4, 2, 1),
    ):
        loaders = looped(replicas, batch_size, num=24, consumed=consumed, shuffle=shuffle)
        more, reached = steps(loaders, num_steps)
        assert reached == consumed + replicas * batch_size * num_steps == consumed + len(more)
        given, consumed = given + more, reached
    assert consumed == 68 > 2 * 24 and given == straight[:68]


def test_what_fills_an_epoch_up_is_not_counted():
    loaders = looped(2, 4, num=5)
    given, consumed = steps(loaders, 1)
    assert len(given) == 6 and sorted(given[:5]) == list(range(5)) and consumed == 5
    again = looped(1, 5, num=5, consumed=consumed)
    assert steps(again, 1)[0] == steps(loaders, 1)[0][:5], "both are at the second epoch's beginning"


def test_an_epoch_with_nothing_left_for_every_replica_gives_way_to_the_next():
    (loader,) = looped(1, 1, num=5, consumed=4)
    proxy = loader.dataloader.sampler
    proxy.num_replicas, proxy.drop_last = 2, True
    assert next(loader) is not None and loader.epoch == 1


def test_a_loader_that_cannot_go_on_within_an_epoch_says_so():
    with pytest.raises(DataError, match="DistributedProxySampler"):
        InfiniteDataLoader(DataLoader([1, 2]), consumed_samples=1)
    with pytest.raises(DataError, match="consumed_samples=-1: must be at least 0"):
        looped(1, 2, consumed=-1)
    with pytest.raises(DataError, match="epoch=1, consumed_samples=2: give one"):
        InfiniteDataLoader(DataLoader(range(3), sampler=DistributedProxySampler(range(3), 1, 0)), 1, consumed_samples=2)


def test_a_pass_takes_little_memory():
    """200,000 indices as Python's own numbers in a list are 7 MB, each time."""
    proxy = DistributedProxySampler(range(200_000), 4, 1)
    tracemalloc.start()
    try:
        indices = iter(proxy)
        next(indices)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * 8 * 200_000 + 1_000_000
    assert sum(1 for _ in indices) == 49_999


def test_batches_of_another_sampler_are_shared_out_too():
    assert list(DistributedProxySampler(BatchSampler(range(5), 2, False), 2, 1, shuffle=False)) == [[2, 3], [0, 1]]
