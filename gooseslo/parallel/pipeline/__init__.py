"""Stages, partition and schedules over torch.distributed.pipelining."""
