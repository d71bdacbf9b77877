"""What sources read of Accelerate's plugin, which FSDP2 has otherwise."""

from __future__ import annotations

import pytest

from fsdp_migrate.source import scan_source


pytestmark = pytest.mark.any_torch

HEADER = "from accelerate import Accelerator\naccelerator = Accelerator()\n"
NAMED = "plugin = accelerator.state.fsdp_plugin\n"
MADE = "from accelerate import FullyShardedDataParallelPlugin\nplugin = FullyShardedDataParallelPlugin({})\n"


def said(body: str) -> list[str]:
    return [use.becomes for use in scan_source(HEADER + body) if use.rule == "plugin-settings"]


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("if accelerator.state.fsdp_plugin.sharding_strategy == 1:\n    pass\n", "reshard_after_forward"),
        (f"{NAMED}x = plugin.use_orig_params\n", "as with true"),
        (f"{NAMED}x = plugin.sync_module_states\n", "cpu_ram_efficient_loading"),
        ("x = self.accelerator.state.fsdp_plugin.backward_prefetch\n", "always prefetches"),
        (f"{NAMED}x = getattr(plugin, 'sharding_strategy', None)\n", "reshard_after_forward"),
        ("p = getattr(accelerator.state, 'fsdp_plugin', None)\nx = p.forward_prefetch\n", "prefetch"),
        (f"{NAMED}x = plugin.cpu_offload.offload_params\n", "CPUOffloadPolicy"),
        (f"{NAMED}x = plugin.mixed_precision_policy.buffer_dtype\n", "MixedPrecisionPolicy"),
        (f"{NAMED}plugin.set_state_dict_type('LOCAL_STATE_DICT')\n", "SHARDED_STATE_DICT"),
        (f"{NAMED}k = {{'cpu_offload': plugin.cpu_offload}}\n", "isinstance(plugin.cpu_offload, CPUOff"),
        (
            f"{NAMED}k = dict(mixed_precision=plugin.mixed_precision_policy)\n",
            "plugin.mixed_precision_policy.par",
        ),
        (f"{MADE.format('sharding_strategy=1')}x = plugin.sharding_strategy\n", "reshard_after_forward"),
        # Of None nothing is shown, and something is decided.
        (f"{NAMED}print(plugin.sharding_strategy.name)\n", "reshard_after_forward"),
        (f"{NAMED}if plugin.use_orig_params:\n    print(1)\n", "as with true"),
        (f"{NAMED}print(plugin.cpu_offload.offload_params)\n", "CPUOffloadPolicy"),
    ],
)
def test_what_fsdp2s_plugin_has_otherwise(body: str, names: str) -> None:
    (found,) = said(body)
    assert names in found


@pytest.mark.parametrize(
    "body",
    [
        f"{NAMED}x = plugin.state_dict_type\n",
        # It is only shown, as None.
        f"{NAMED}print('kept', plugin.use_orig_params)\n",
        f"{NAMED}logger.info(f'by {{plugin.sharding_strategy}}')\n",
        f"{NAMED}print(getattr(plugin, 'forward_prefetch', None))\n",
        f"{NAMED}x = plugin.mixed_precision_policy.param_dtype\n",
        f"{NAMED}x = plugin.cpu_offload\n",
        f"{NAMED}plugin.use_orig_params = True\n",
        f"{NAMED}k = {{'offload_policy': plugin.cpu_offload, 'mp_policy': plugin.mixed_precision_policy}}\n",
        f"{NAMED}k = {{'cpu_offload': args.cpu_offload}}\n",
        f"{NAMED}x = args.cpu_offload.offload_params\n",
        f"{NAMED}plugin.set_state_dict_type('FULL_STATE_DICT')\n",
        "x = config.sharding_strategy\ny = args.use_orig_params\n",
        f"{NAMED}x = plugin.sharding_strategy if plugin.fsdp_version == 1 else None\n",
        MADE.format("fsdp_version=2") + "x = plugin.sharding_strategy\n",
        (
            "s = accelerator.state\nif s.fsdp_plugin.sharding_strategy is None:\n    x = 2\n"
            "elif s.fsdp_plugin.sharding_strategy == 1:\n    x = 1\n"
        ),
    ],
)
def test_what_is_the_same_or_another_things(body: str) -> None:
    assert said(body) == []


@pytest.mark.parametrize(
    ("line", "is_said"),
    [
        ("# fsdp_version 2 is not tried yet", True),
        ("text = 'is_fsdp2 is for later'", True),
        ("p = FullyShardedDataParallelPlugin(fsdp_version=1)", True),
        ("p = FullyShardedDataParallelPlugin(fsdp_version=2)", False),
        ("p = FullyShardedDataParallelPlugin(fsdp_version=args.version)", False),
        ("v = getattr(plugin, 'fsdp_version', 1)", False),
        ("v = cfg['fsdp_version']", False),
        ("is_fsdp2 = accelerator.is_fsdp2", False),
        ("v = plugin.sharding_strategy is None", False),
        ("v = plugin.sharding_strategy is not None", False),
        ("v = accelerator.state.fsdp_plugin is None", True),
        ("v = plugin is None", True),
        ("v = args.sharding_strategy is None", True),
        ("v = plugin.use_orig_params == None", True),
    ],
)
def test_what_asks_which_version_runs(line: str, *, is_said: bool) -> None:
    assert bool(said(f"{NAMED}{line}\nx = plugin.backward_prefetch\n")) is is_said


def test_a_plugin_of_another_package() -> None:
    body = (
        "from colossal import TorchPlugin\nfsdp_plugin = TorchPlugin()\nx = fsdp_plugin.sharding_strategy\n"
    )
    assert [use for use in scan_source(body) if use.rule == "plugin-settings"] == []
