"""Known faults that sources show, line by line. Nothing is run; what stands in a comment does not count."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fsdp_migrate.doctor.known import Affected, KnownFault, seen_of
from fsdp_migrate.doctor.late_settings import is_in_full_precision, late_settings
from fsdp_migrate.doctor.read_empty import read_empty
from fsdp_migrate.doctor.still_plain import asked_dimensions, copied_shards, goes_beside
from fsdp_migrate.source.catalog import MODEL_ALONE
from fsdp_migrate.source.ended_groups import BEGINS, ENDS, WITH_GLOO


if TYPE_CHECKING:
    from collections.abc import Callable

    from fsdp_migrate.doctor.sight import Sight


_DCP_LOAD = r"\b(?:dcp|checkpoint|dist_cp|DCP)\.load\("
# A module of the project's own may be called `checkpoint`.
_IMPORTS_IT = r"\btorch\.distributed(?:\.checkpoint\b|[ \t]+import\b[ \t]*(?:\([^)]*|[^\n]*)\bcheckpoint\b)"
_LOADS_BY_DCP = rf"\b(?:dcp|dist_cp|DCP)\.load\(|(?s:\A(?=.*{_IMPORTS_IT}).*\bcheckpoint\.load\()"
_WRAPS = r"\b(?:FSDP|FullyShardedDataParallel|fully_shard|prepare_fully_shard)\("


def _line(pattern: str, *, without: str = "", beside: str = "") -> Callable[[Sight], str]:
    """Return what sees a line; ``without``, or only ``beside``, something else in the same file."""

    def sees(sight: Sight) -> str:
        if beside:
            near = {path: text for path, text in sight.sources.items() if _has(text, beside)}
            sight = type(sight)(sources=near)
        return sight.find(pattern, without=without)

    return sees


def _ends_gloo(sight: Sight) -> str:
    """Return where a group ends that may be gloo's: this file begins it, or another one does."""
    if near := _line(ENDS, beside=WITH_GLOO)(sight):
        return near
    begins = [_has(text, WITH_GLOO) for text in sight.sources.values() if _has(text, BEGINS)]
    if not any(begins):
        return ""
    apart = {path: text for path, text in sight.sources.items() if not _has(text, BEGINS)}
    return type(sight)(sources=apart).find(ENDS)


def _has(text: str, pattern: str) -> bool:
    return re.search(pattern, text) is not None


def _offloads_full_state(sight: Sight) -> str:
    if sight.has_accelerator:
        return ""
    return sight.find(r"\bFullStateDictConfig\([^)\n]*\boffload_to_cpu\s*=\s*True")


_UNFREEZES = _line(r"\.requires_grad(?:_\(\s*True|_\(\s*\)|\s*=\s*True)", beside=_WRAPS)


def _unfreezes_later(sight: Sight) -> str:
    """Return where a script unfreezes, unless nothing is reduced in another dtype than it is computed in."""
    if is_in_full_precision(sight):
        return ""
    return _UNFREEZES(sight) or late_settings(sight, is_written=False)


_DETACHED = (
    r"\b(?:G|actor|gen|generator|model|net|net_?[Gg]|policy|student)"
    r"\((?:[^()\n]|\([^()\n]*\))*\)\s*\.detach\(\)"
)
_IN_LOW_PRECISION = (
    r"(?i)(?s:\A(?=.*\b(?:FSDP\w*|FullyShardedDataParallel|prepare_fully_shard)\()"
    r".*\b(?:bfloat16|bf16|float16|fp16))"
)

# `group["initial_lr"] = lr`, `group.setdefault("initial_lr", lr)`: it is there before the scheduler looks.
_SETS_INITIAL_LR = (
    r"(?m)^[^#\n]*(?:\[\s*[\"']initial_lr[\"']\s*\]\s*=(?!=)|\bsetdefault\(\s*[\"']initial_lr[\"'])"
)

SOURCE_FAULTS = (
    KnownFault(
        "initial-lr-is-lost",
        "A scheduler that is built with `last_epoch` looks for `initial_lr` in the optimizer, which loading "
        "a distributed checkpoint does not put there: KeyError.",
        "pytorch/pytorch#140900",
        "sources",
        _line(r"\blast_epoch\s*=\s*(?!-\s*1\b|None\b|=)", without=_SETS_INITIAL_LR),
        "Build the scheduler without `last_epoch`, and load its own `state_dict()`.",
        reproduced=True,
    ),
    KnownFault(
        "raw-optimizer-state",
        "`optimizer.state_dict()` of a new optimizer has no moments, so `dcp.load` loads none: they begin at "
        "zero, silently.",
        "KempnerInstitute/KempnerForge#115",
        "sources",
        _line(r"\boptim\w*\.state_dict\(\)", beside=_LOADS_BY_DCP),
        "Ask for `get_state_dict(model, optimizer)`, or call `fsdp_migrate.load_checkpoint`.",
        reproduced=True,
        harm="silent",
    ),
    KnownFault(
        "fsdp1-resumes-without-moments",
        "`FSDP.optim_state_dict` of a new optimizer has no state, so `dcp.load` into it loads none, without "
        "an error. The FSDP1 run that was resumed parts from the one that was not stopped at its second "
        "step.",
        "measured",
        "sources",
        read_empty,
        "Compare the FSDP2 run with the FSDP1 run that was not stopped: `fsdp_migrate.load_checkpoint` loads "
        "the state. A checkpoint that was saved after such a resume and before a step has no moments (FM219)"
        ". Where the optimizer has stepped before it is asked, nothing is wrong.",
        reproduced=True,
        harm="silent",
        looked_up="2026-11-28",
    ),
    KnownFault(
        "fsdp1-loses-gradients",
        "In mixed precision FSDP1 loses a step's gradients where a forward that no backward follows comes "
        "before it with gradients on: of a generator whose output is detached, of an evaluation without "
        "`no_grad`. With `use_orig_params=True` there are none, without it one rank's are taken unreduced.",
        "measured",
        "sources",
        _line(_DETACHED, beside=_IN_LOW_PRECISION),
        "Nothing for FSDP2, which has the gradients: the run trains what FSDP1's did not. To compare the "
        "two, run that forward under `torch.no_grad()` in both.",
        reproduced=True,
        harm="silent",
        looked_up="2026-11-28",
    ),
    KnownFault(
        "unfreezing-later",
        "A unit whose first forward was all frozen keeps no dtype for its reductions: once it is trained in "
        "mixed precision, backward fails, or reduces in low precision silently.",
        "pytorch/pytorch#186998",
        "sources",
        _unfreezes_later,
        "Unfreeze before the first forward, or run one forward with everything trained; then freeze. Models "
        "of prepare_fully_shard are not affected.",
        (Affected("torch", "2.8", "2.14"),),  # measured: 2.13 has it, 2.15 has it not; mended in June 2026
        reproduced=True,
        harm="silent",
        is_handled=True,
    ),
    KnownFault(
        "checkpoint-errors-slip-through",
        "What `dcp.load` raises is no `Exception` but a `BaseException`: `except Exception` misses it.",
        "measured",
        "sources",
        _line(r"^[ \t]*except Exception\b", beside=_LOADS_BY_DCP),
        "Catch `CheckpointException` too, and look into its `failures`.",
        reproduced=True,
        harm="costs",
    ),
    KnownFault(
        "metadata-is-a-pickle",
        "`dcp.load` unpickles `.metadata`: a checkpoint from elsewhere can run any code.",
        "pytorch/pytorch#189308",
        "sources",
        _line(_DCP_LOAD, beside=_LOADS_BY_DCP),
        "Nothing for your own. Load others by `fsdp_migrate.load_checkpoint`, which runs nothing of them.",
        reproduced=True,
        harm="costs",
    ),
    KnownFault(
        "deepcopy-of-shards",
        "A model that FSDP2 has sharded cannot be copied by `deepcopy`, as averages of weights do.",
        "pytorch/pytorch#149138",
        "sources",
        copied_shards,
        "Use `fsdp_migrate.runtime.clone_parameters` and `ema_update`.",
        reproduced=True,
    ),
    KnownFault(
        "sync-stays-off",
        "`set_requires_gradient_sync(False)` stays until it is set again; FSDP1's `no_sync()` ended by "
        "itself.",
        "huggingface/accelerate#3760",
        "sources",
        _line(
            r"set_requires_gradient_sync\(\s*False",
            without=r"set_requires_gradient_sync\(\s*(?!False)[^\s)]",
        ),
        "Set it to True before the last backward, or use `fsdp_migrate.runtime.no_sync`.",
        reproduced=True,
        harm="silent",
    ),
    KnownFault(
        "nameless-hybrid-mesh",
        "`fully_shard` refuses a mesh of two dimensions without names, which FSDP1 took.",
        "measured",
        "sources",
        _line(r"init_device_mesh\([^)]*\([^)]*,\s*[^)\s][^)]*\)\s*\)", beside=r"fully_shard"),
        'Give `mesh_dim_names=("replicate", "shard")`; `prepare_fully_shard` names them.',
        reproduced=True,
        is_handled=True,
    ),
    KnownFault(
        "groups-by-dimensions",
        "FSDP1's parameters were flat, so that `p.ndim >= 2` put all of them into one group; FSDP2's have "
        "their shapes: weight decay changes silently, and old checkpoints' groups do not fit.",
        "measured",
        "sources",
        asked_dimensions,
        "Decide which groups are meant: `fsdp-migrate explain FM318` says how to keep the old ones, and how "
        "to change them. `fsdp-migrate scan` names each such line.",
        reproduced=True,
        harm="silent",
    ),
    KnownFault(
        "old-optimizer-state-functions",
        "`FSDP.full_optim_state_dict` and its relatives will fail in a later torch, and know no FSDP2 model.",
        "pytorch/pytorch#191712",
        "sources",
        _line(
            r"\.(?:full_optim_state_dict|sharded_optim_state_dict|shard_full_optim_state_dict|"
            r"flatten_sharded_optim_state_dict|scatter_full_optim_state_dict)\("
        ),
        "`fsdp-migrate rewrite` turns them into `fsdp_migrate.runtime`'s.",
    ),
    KnownFault(
        "norm-is-a-part",
        "What `torch.nn.utils.clip_grad_norm_` returns of sharded gradients is a DTensor: its local value is "
        "this rank's part of the norm.",
        "pytorch/pytorch#170862",
        "sources",
        _line(r"=\s*[\w.]*clip_grad_norm_\(.*\)(?:\.to_local\(\)|\._local_tensor)"),
        "Call `.full_tensor()` on it, or `fsdp_migrate.runtime.clip_grad_norm_`, which returns a plain "
        "tensor.",
        (Affected("torch", "2.6", "2.13"),),
        reproduced=True,
        harm="silent",
    ),
    KnownFault(
        "ending-a-group-of-gloo",
        "On gloo a process may abort while it ends, after `destroy_process_group()` and all its work: the "
        "job counts as failed. Up to torch 2.7 that call may also wait for ever.",
        "pytorch/pytorch#179291",
        "sources",
        _ends_gloo,
        "End the script by `fsdp_migrate.runtime.end_process_group()` in its place. Groups of NCCL alone end "
        "well.",
        looked_up="2026-11-23",
    ),
    KnownFault(
        "requirement-without-fsdp2",
        "A requirement keeps out the versions that run FSDP2 as it is written here: where it is installed, "
        "nothing of this runs, or a framework trains under FSDP1.",
        "measured",
        "sources",
        lambda sight: seen_of(
            f"{pin.path}:{pin.line} {pin.requirement} (needed: {pin.needed})" for pin in sight.pins
        ),
        "Raise it to the version that is needed, and look at what else was pinned for it.",
        looked_up="2026-11-23",
    ),
    KnownFault(
        "trainer-arguments-without-version",
        "HF Trainer runs FSDP2 where `TrainingArguments` asks for FSDP and `fsdp_config` has no `version`; "
        "before 5.10 it ran FSDP1.",
        "huggingface/transformers#45640",
        "sources",
        _line(
            r"\bfsdp\s*=\s*(?:True\b|\[?\s*[\"'](?:full_shard|shard_grad_op|hybrid_shard\w*|no_shard)\b)",
            without=r"[\"'](?:fsdp_)?version[\"']\s*:|\bversion\s*=\s*[12]\b|\bfsdp_config\s*=\s*[\"'][^\"'\n]+\.json",
            beside=r"TrainingArguments|(?:SFT|DPO|GRPO|Reward)Config",
        ),
        "Write the `version` that you mean: 1 for FSDP1, as the run was. `fsdp-migrate rewrite` writes 2.",
        (Affected("transformers", "5.10"),),
        harm="silent",
        looked_up="2026-11-22",
    ),
    KnownFault(
        "writes-after-evaluation",
        "After a forward without gradients FSDP2's root, and each unit that is not sharded again, shows what "
        "it has gathered: what is written to it (an average of weights, a target network), or set on it "
        "(`requires_grad`, a hook), is lost silently, or meets DTensors and raises. FSDP1 showed its shards, "
        "and kept what was written, but computed on with what it had gathered (FM451).",
        "measured",
        "sources",
        lambda sight: goes_beside(sight) or late_settings(sight, is_written=True),
        "Call `reshard()` of every `FSDPModule` of both before you go through their parameters, also where "
        "Accelerate or HF Trainer shards. Models of prepare_fully_shard need nothing; where their run "
        "differs from FSDP1's, `scan` names the place.",
        reproduced=True,
        harm="silent",
        is_handled=True,
    ),
    KnownFault(
        "accelerate-prepares-apart",
        "Under FSDP2 Accelerate prepares a model and its optimizer in one call only. For FSDP1 it once "
        "advised to prepare the model alone, before the optimizer was made.",
        "huggingface/accelerate#3394",
        "sources",
        _line(MODEL_ALONE),
        "Make the optimizer first, and write `model, optimizer = accelerator.prepare(model, optimizer)`; "
        "other objects may go along.",
        (Affected("accelerate", "1.6"),),
        looked_up="2026-11-25",
    ),
    KnownFault(
        "full-state-ends-on-cpu",
        "FSDP1's full state dict of a model on a CPU, with `offload_to_cpu=True`, reads memory that torch "
        "has freed: Segmentation fault, or RuntimeError: setStorage. Accelerate and Lightning ask for it "
        "with FULL_STATE_DICT, so that an FSDP1 run on a CPU, to compare with, cannot save in that form.",
        "measured",
        "sources",
        _offloads_full_state,
        "Write `FullStateDictConfig(offload_to_cpu=False, rank0_only=True)` there, or save with "
        "`SHARDED_STATE_DICT`. FSDP2's `full_state_dict` is not concerned, and neither is FSDP1 on a GPU.",
        (Affected("torch", "2.7"),),
        looked_up="2026-11-28",
    ),
    KnownFault(
        "optimizer-of-8-bits",
        "Optimizers of bitsandbytes, of 8 bits, of 32 and paged, stop at DTensors; old versions quantise "
        "them wrongly.",
        "bitsandbytes-foundation/bitsandbytes#1633",
        "sources",
        _line(r"\b(?:bnb|bitsandbytes)\.optim\.(?:\w*8bit|\w+32bit|Paged\w+)\("),
        "Take torchao's low-bit optimizers, or torch's AdamW. `prepare_fully_shard(optimizers=...)` refuses "
        "bitsandbytes' (FM115).",
        harm="silent",
    ),
)
"""Faults of scripts."""
