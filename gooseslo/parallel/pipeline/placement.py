"""Which ranks of the pipeline hold which of its stages."""

from __future__ import annotations

from dataclasses import dataclass

from gooseslo.schema.schedule_table import rank_of_stage


@dataclass(frozen=True, kw_only=True)
class StagePlacement:
    """`virtual_stages` stages a rank: dealt round and round (loop), or down and up again (v).

    Loop: rank r holds r, r + pp, ...; V, of two stages a rank: rank r holds r and 2 pp - 1 - r, so that rank 0 has both
    ends of the model (Qi et al., "Zero Bubble Pipeline Parallelism", 2023, section 6).
    """

    pp: int
    virtual_stages: int = 1
    is_v: bool = False

    @property
    def num_stages(self) -> int:
        return self.pp * self.virtual_stages

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Of a rank on the pp axis, ascending."""
        return tuple(stage for stage in range(self.num_stages) if self.rank_of(stage) == rank)

    def rank_of(self, stage: int) -> int:
        """On the pp axis."""
        return rank_of_stage(stage, pp=self.pp, is_v=self.is_v)

    @property
    def parts_ends(self) -> bool:
        """Whether the first and the last stage are on two ranks."""
        return self.rank_of(0) != self.rank_of(self.num_stages - 1)
