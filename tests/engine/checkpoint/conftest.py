"""A tiny GPT-2 cut into ranks by hand, and forked gloo ranks to save it with."""

import multiprocessing
import traceback
from dataclasses import dataclass, field

import pytest
import torch
import torch.distributed as dist
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from gooseslo.engine.checkpoint.save import Coordinates, LocalState, save_step
from gooseslo.parallel.tensor.layouts import Placement, whole

TIED = {"lm_head.weight": "transformer.wte.weight"}


def cut(shape, dim, rank, size, *, blocks=1):
    """The placement of a rank's share of each of `blocks` equal blocks along `dim`; uneven shares are allowed."""
    block = shape[dim] // blocks
    edges = [block * r // size for r in range(size + 1)]
    boxes = []
    for index in range(blocks):
        box = [(0, length) for length in shape]
        box[dim] = (index * block + edges[rank], index * block + edges[rank + 1])
        boxes.append(tuple(box))
    return Placement(full_shape=tuple(shape), boxes=tuple(boxes), dim=dim)


def gpt2_placement(name, shape, rank, size):
    """Where tp rank `rank` of `size` holds a GPT-2 parameter."""
    shape = tuple(shape)
    if "c_attn" in name:
        return cut(shape, len(shape) - 1, rank, size, blocks=3)
    if "c_fc" in name:
        return cut(shape, len(shape) - 1, rank, size)
    if "c_proj.weight" in name or "wte" in name or "lm_head" in name:
        return cut(shape, 0, rank, size)
    return whole(shape)


@dataclass
class TinyGPT2:
    """A model, its optimizer state, and how ranks hold them."""

    model: GPT2LMHeadModel
    tied: dict = field(default_factory=dict)

    def full(self):
        return {name: parameter.detach() for name, parameter in self.model.named_parameters()}

    def moments(self):
        generator = torch.Generator().manual_seed(5)
        return {f"exp_avg/{n}": torch.rand(p.shape, generator=generator) for n, p in self.full().items()}

    def on_stage(self, name, pp, num_stages):
        if ".h." in name:
            layer = int(name.split(".h.")[1].split(".")[0])
            return layer * num_stages // self.model.config.n_layer == pp
        return pp == (num_stages - 1 if "ln_f" in name or "lm_head" in name else 0)

    def held(self, full, *, tp, tp_size, pp=0, pp_size=1):
        """What a rank holds of full tensors; the last stage of a tied model holds its head under the alias."""
        result = {}
        for name, tensor in full.items():
            placement = gpt2_placement(name, tensor.shape, tp, tp_size)
            if self.on_stage(name, pp, pp_size):
                result[name] = (placement.take(tensor), placement)
            if name.endswith("wte.weight") and self.tied and pp == pp_size - 1:
                alias = name.replace("transformer.wte.weight", "lm_head.weight")
                result[alias] = (placement.take(tensor), placement)
        return result


@pytest.fixture
def make_gpt2():
    def make(*, tie=True, **sizes):
        torch.manual_seed(0)
        config = GPT2Config(
            **{"vocab_size": 41, "n_positions": 32, "n_embd": 24, "n_layer": 4, "n_head": 6, **sizes},
            tie_word_embeddings=tie,
        )
        return TinyGPT2(GPT2LMHeadModel(config), TIED if tie else {})

    return make


@pytest.fixture
def write_common():
    """Writes what a Hub-style folder has beside its weights."""

    def writer(model):
        def write(folder):
            model.config.save_pretrained(folder)
            model.generation_config.save_pretrained(folder)
            byte_level = Tokenizer(models.BPE(vocab={"<|endoftext|>": 0, "a": 1, "b": 2, "Ġ": 3}, merges=[]))
            byte_level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            byte_level.decoder = decoders.ByteLevel()
            end = {"eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
            PreTrainedTokenizerFast(tokenizer_object=byte_level, **end).save_pretrained(folder)

        return write

    return writer


def _run_rank(target, rank, size, store_path, results):
    torch.set_num_threads(1)  # a forked child must not use the parent's thread pool
    try:
        if size > 1:
            dist.init_process_group("gloo", store=dist.FileStore(store_path, size), rank=rank, world_size=size)
        results.put((rank, None, target(rank)))
    except Exception as error:
        results.put((rank, f"{type(error).__name__}: {error}", traceback.format_exc()))
    if size > 1:
        dist.destroy_process_group()


@pytest.fixture
def run_ranks(tmp_path_factory):
    """Runs `target(rank)` on forked ranks; returns by rank what it returned, or with `errors` what it raised."""

    def run(target, size, *, errors=False):
        context = multiprocessing.get_context("fork")
        results = context.Queue()
        store = str(tmp_path_factory.mktemp("store") / "store")
        processes = [
            context.Process(target=_run_rank, args=(target, rank, size, store, results)) for rank in range(size)
        ]
        for process in processes:
            process.start()
        try:
            outcomes = sorted(results.get(timeout=60) for _ in processes)
            for process in processes:
                process.join(20)
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
                process.join()
        if errors:
            return [error for _, error, _ in outcomes]
        failed = [value for _, error, value in outcomes if error]
        assert not failed, failed[0]
        return [value for _, _, value in outcomes]

    return run


@pytest.fixture
def save_tiny(run_ranks, write_common):
    """Saves a TinyGPT2 from a tp x dp x pp mesh of real ranks (tp fastest); returns the step folder."""

    def save(tiny, checkpoints, *, step=1, tp=1, pp=1, dp=1, **options):
        full, moments = tiny.full(), tiny.moments()

        def rank_main(rank):
            at = Coordinates(tp=rank % tp, dp=rank // tp % dp, pp=rank // (tp * dp))
            where = {"tp": at.tp, "tp_size": tp, "pp": at.pp, "pp_size": pp}
            optimizer = tiny.held(moments, **where)
            local = LocalState(tensors=tiny.held(full, **where), optimizer=optimizer)
            return save_step(
                checkpoints,
                step,
                local=local,
                coordinates=at,
                topology={"tp": tp, "pp": pp, "dp": dp},
                state={"step": step},
                tied=tiny.tied,
                write_common=write_common(tiny.model),
                **options,
            )

        size = tp * pp * dp
        return rank_main(0) if size == 1 else run_ranks(rank_main, size)[0]

    return save
