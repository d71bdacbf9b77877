"""Reads configs as Accelerate's launcher and HF Trainer do, up to the plugin; tells what a run would do."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import accelerate.utils.dataclasses
import torch
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.parallelism_config import ParallelismConfig
from accelerate.utils import FullyShardedDataParallelPlugin
from accelerate.utils.launch import prepare_multi_gpu_env


_WORDS = ["--machine_rank", "0", "--main_process_ip", "x", "--main_process_port", "1", "s.py"]


def facts(plugin: FullyShardedDataParallelPlugin) -> dict[str, Any]:
    """Return what a plugin makes of a run."""
    offload, policy = plugin.cpu_offload, plugin.auto_wrap_policy
    one = getattr(plugin.sharding_strategy or plugin.reshard_after_forward, "name", None)
    return {
        "version": plugin.fsdp_version,
        "frees": plugin.reshard_after_forward if one is None else one in {"FULL_SHARD", "HYBRID_SHARD"},
        "strategy": one,
        "offload": getattr(offload, "offload_params", type(offload).__name__ == "CPUOffloadPolicy"),
        "policy": getattr(policy, "__name__", policy),
        "classes": [name.strip() for name in plugin.transformer_cls_names_to_wrap or ()],
        "count": plugin.min_num_params or 0,
        "state": getattr(plugin.state_dict_type, "name", str(plugin.state_dict_type)),
        "recomputes": bool(plugin.activation_checkpointing),
        "loads": bool(plugin.cpu_ram_efficient_loading),
        "ignored": plugin.ignored_modules,
        "prefetch": getattr(plugin.backward_prefetch, "name", None),
        "forward": bool(plugin.forward_prefetch),
        "sync": bool(plugin.sync_module_states),
    }


def launched(text: str) -> dict[str, Any]:
    """Return what ``accelerate launch`` with a config makes of a run."""
    path = Path(tempfile.mkdtemp()) / "c.yaml"
    path.write_text(text)
    parsed = launch_command_parser().parse_args(["--config_file", str(path), *_WORDS])
    args, _, _ = _validate_launch_command(parsed)
    environment = prepare_multi_gpu_env(args)
    os.environ.update(environment)
    mesh = ParallelismConfig()
    found = facts(FullyShardedDataParallelPlugin())
    gloo = environment["FSDP_OFFLOAD_PARAMS"] == "true" or found["state"] == "FULL_STATE_DICT"
    return {**found, "mesh": [mesh.dp_replicate_size, mesh.dp_shard_size], "gloo": gloo}


def trained(text: str) -> dict[str, Any]:
    """Return what HF Trainer makes of its arguments."""
    from transformers import TrainingArguments

    given = {**json.loads(text), "output_dir": tempfile.mkdtemp(), "use_cpu": True, "report_to": []}
    return facts(FullyShardedDataParallelPlugin(**TrainingArguments(**given).fsdp_plugin_args))


def main() -> None:
    """Print what each text of the JSON in standard input makes of a run, or how it stops."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    # A plugin that sends weights asks for an accelerator; nothing is put on one here.
    accelerate.utils.dataclasses.is_cuda_available = lambda: True
    torch.cuda.current_device = lambda: 0
    read = {"accelerate": launched, "hf": trained}[sys.argv[1]]
    found = []
    for text in json.load(sys.stdin):
        for name in [
            name for name in os.environ if name.startswith(("FSDP_", "ACCELERATE_", "PARALLELISM_"))
        ]:
            del os.environ[name]
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                found.append(read(text))
        except (Exception, SystemExit) as error:
            found.append({"error": f"{type(error).__name__}: {error}"[:200]})
    sys.stdout.write(f"{json.dumps(found)}\n")


if __name__ == "__main__":
    main()
