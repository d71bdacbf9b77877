"""What FSDP1 consists of: its public names, where they live, and the order of its arguments."""

from __future__ import annotations

import re


FSDP = "FullyShardedDataParallel"
OF_FSDP2_ALONE = frozenset(
    {
        *("reset_iter_state", "reshard", "unshard", "set_all_reduce_hook", "set_custom_all_gather"),
        *("set_allocate_memory_from_process_group_for_comm", "set_custom_reduce_scatter"),
        *("set_force_sum_reduction_for_comms", "set_gradient_divide_factor", "set_is_last_backward"),
        *("set_modules_to_backward_prefetch", "set_modules_to_forward_prefetch", "set_post_optim_event"),
        *("set_reduce_scatter_divide_factor", "set_reduce_scatter_max_input_buffers"),
        *("set_reduce_scatter_unused_params", "set_requires_all_reduce", "set_requires_gradient_sync"),
        *("set_reshard_after_backward", "set_reshard_after_forward", "set_separate_reduce_scatter_group"),
        *("set_symm_mem_for_comm", "set_unshard_in_backward"),
    }
)
"""The methods that FSDP2's models have, and FSDP1's wrapper had not."""
WRAPPED = frozenset({"_fsdp_wrapped_module", "module"})
"""The attributes by which its wrapper showed the model within."""

CONSTRUCTOR_ARGUMENTS = (
    "module",
    "process_group",
    "sharding_strategy",
    "cpu_offload",
    "auto_wrap_policy",
    "backward_prefetch",
    "mixed_precision",
    "ignored_modules",
    "param_init_fn",
    "device_id",
    "sync_module_states",
    "forward_prefetch",
    "limit_all_gathers",
    "use_orig_params",
    "ignored_states",
    "device_mesh",
)
"""The arguments of ``FullyShardedDataParallel`` in the order in which they may be given by position."""

OF_MODULES = frozenset(
    {
        "apply",
        "bfloat16",
        "children",
        "clip_grad_norm_",
        "cpu",
        "cuda",
        "eval",
        "forward",
        "half",
        "load_state_dict",
        "modules",
        "named_modules",
        "named_parameters",
        "no_sync",
        "parameters",
        "requires_grad_",
        "state_dict",
        "to",
        "train",
        "zero_grad",
    }
)
"""What torch's own modules have: a class that defines one again is none of a project's questions."""

ARGUMENT_WORDS = frozenset(
    {
        "BackwardPrefetch",
        "CPUOffload",
        "CustomPolicy",
        "MixedPrecision",
        "ModuleWrapPolicy",
        "ShardingStrategy",
        "_module_wrap_policy",
        "_or_policy",
        "_wrap_module_cls_individually",
        "always_wrap_policy",
        "lambda_auto_wrap_policy",
        "size_based_auto_wrap_policy",
        "transformer_auto_wrap_policy",
    }
)
"""What FSDP1's arguments are made of, and ``prepare_fully_shard`` takes as it is."""

STATE_DICT_WORDS = frozenset(
    {
        "FullOptimStateDictConfig",
        "FullStateDictConfig",
        "LocalOptimStateDictConfig",
        "LocalStateDictConfig",
        "OptimStateDictConfig",
        "OptimStateKeyType",
        "ShardedOptimStateDictConfig",
        "ShardedStateDictConfig",
        "StateDictConfig",
        "StateDictSettings",
        "StateDictType",
    }
)
"""What FSDP1's state dict calls are told, for which FSDP2 has no use."""

CLASS_FUNCTIONS = frozenset(
    {
        "flatten_sharded_optim_state_dict",
        "fsdp_modules",
        "full_optim_state_dict",
        "get_state_dict_type",
        "optim_state_dict",
        "optim_state_dict_to_load",
        "rekey_optim_state_dict",
        "scatter_full_optim_state_dict",
        "set_state_dict_type",
        "shard_full_optim_state_dict",
        "sharded_optim_state_dict",
        "state_dict_type",
        "summon_full_params",
    }
)
"""What is called on the class itself, and is given the model."""

MODULE_METHODS = frozenset(
    {
        "add_module",
        "apply",
        "bfloat16",
        "buffers",
        "children",
        "compile",
        "cpu",
        "cuda",
        "double",
        "eval",
        "extra_repr",
        "float",
        "forward",
        "get_buffer",
        "get_extra_state",
        "get_parameter",
        "get_submodule",
        "half",
        "ipu",
        "load_state_dict",
        "modules",
        "mtia",
        "named_buffers",
        "named_children",
        "named_modules",
        "named_parameters",
        "parameters",
        "register_backward_hook",
        "register_buffer",
        "register_forward_hook",
        "register_forward_pre_hook",
        "register_full_backward_hook",
        "register_full_backward_pre_hook",
        "register_load_state_dict_post_hook",
        "register_load_state_dict_pre_hook",
        "register_module",
        "register_parameter",
        "register_state_dict_post_hook",
        "register_state_dict_pre_hook",
        "requires_grad_",
        "set_extra_state",
        "set_submodule",
        "share_memory",
        "state_dict",
        "to",
        "to_empty",
        "train",
        "type",
        "xpu",
        "zero_grad",
    }
)
"""What every module of torch can be asked."""

WRAPPER_ATTRIBUTES = frozenset(
    {
        "backward_prefetch",
        "compute_device",
        "cpu_offload",
        "forward_prefetch",
        "limit_all_gathers",
        "mixed_precision",
        "process_group",
        "rank",
        "sharding_strategy",
        "training_state",
        "world_size",
        "params",
        "_all_fsdp_states",
        "_all_reduce_stream",
        "_assert_state",
        "_buffer_names",
        "_debug_level",
        "_default_stream",
        "_device_handle",
        "_gradient_postdivide_factor",
        "_gradient_predivide_factor",
        "_inter_node_state",
        "_optim_state_dict_config",
        "_post_backward_stream",
        "_pre_unshard_stream",
        "_state_dict_config",
        "_sync_gradients",
        "_unshard_event",
        "_unshard_params_ctx",
        "_use_full_prec_in_eval",
        "_comm_hook",
        "_comm_hook_state",
        "_device_mesh",
        "_free_event_queue",
        "_ignored_modules",
        "_ignored_params",
        "_inter_node_pg",
        "_sharded_param_names",
        "_unshard_stream",
        "_fsdp_extension",
        "_has_params",
        "_is_root",
        "_lazy_init",
        "_reset_lazy_init",
        "_state_dict_type",
        "_use_orig_params",
        "check_is_root",
    }
)
"""What the wrapper shows of itself, and FSDP2's modules do not."""

FSDP2_CLASSES = frozenset(
    {
        "torch.distributed._composable.fsdp.FSDPModule",
        "torch.distributed._composable.fsdp.fully_shard.FSDPModule",
        "torch.distributed.fsdp.FSDPModule",
        "torch.distributed.fsdp._fully_shard.FSDPModule",
        "torch.distributed.fsdp._fully_shard._fsdp_state.FSDPState",
        "torch.distributed.fsdp._fully_shard._fully_shard.FSDPModule",
    }
)
"""The names of FSDP2's class and of its state, in newer and in older versions of torch."""

FSDP2_NAMES = re.compile(r"FSDP2|FSDPModule|(?i:FSDP_?V?2_?(?:Class|Model|Module|State))")
"""What other packages call FSDP2's class, and a project's other files, for others to import from them."""

MADE_BY_OTHERS = re.compile(
    r"^(?:composer\.(?:\w+\.)*prepare_fsdp_module|d2go\.(?:\w+\.)*build_fsdp|fairseq2\.nn\.fsdp\.(?:\w+\.)*to_fsdp1?"
    r"|ray\.train\.torch\.(?:\w+\.)*prepare_model|torchtnt\.(?:\w+\.)*prepare_fsdp)$"
)
"""Functions of other packages that make FSDP1's models; Ray's one by ``parallel_strategy="fsdp"``."""

MAY_KEEP_NAMES = re.compile(r"use_orig_params['\"]?\]?(?:\s*:\s*\w+)?\s*[:=]\s*(?!False\b|\s)")
"""What a text has that may ask FSDP1 for parameters of their own names."""

FSDP2_FUNCTIONS = frozenset({"apply_fsdp2", "fully_shard"})
"""The last parts of names of functions that shard by FSDP2, torch's and other packages' own."""

MODEL_FUNCTIONS = {
    "flatten_sharded_optim_state_dict": 1,
    "full_optim_state_dict": 0,
    "get_state_dict_type": 0,
    "optim_state_dict": 0,
    "set_state_dict_type": 0,
    "sharded_optim_state_dict": 0,
    "shard_full_optim_state_dict": 1,
    "scatter_full_optim_state_dict": 1,
    "state_dict_type": 0,
    "summon_full_params": 0,
}
"""Functions of the class that are given a sharded model, and at which place."""

FORMER_ARGUMENTS = {"fsdp_auto_wrap_policy": "auto_wrap_policy", "ignored_parameters": "ignored_states"}
"""What arguments of the constructor were called in torch 1.11 to 2.0, and what they are called since."""

SIZE_POLICY = "size_based_auto_wrap_policy"
FORMER_SIZE_POLICY = "default_auto_wrap_policy"
"""Its name in torch 1.11; later versions do not have it."""

FORMER_MODULES = frozenset(
    {"_symbolic_trace", "_utils", "flat_param", "flatten_params_wrapper", "shard_utils"}
)
"""Modules of torch 1.11 to 2.0 that no torch with FSDP2 has."""

MANUAL_WRAPPING = frozenset({"ConfigAutoWrap", "enable_wrap", "wrap"})

PUBLIC_NAMES = (
    ARGUMENT_WORDS
    | STATE_DICT_WORDS
    | MANUAL_WRAPPING
    | {FSDP, "FlatParameter", "LocalOptimStateDictConfig", "ShardedGradScaler", "StateDictSettings"}
)

_FSDP2 = frozenset(
    {
        "CPUOffloadPolicy",
        "DataParallelMeshDims",
        "FSDPModule",
        "MixedPrecisionPolicy",
        "OffloadPolicy",
        "UnshardHandle",
        "_fully_shard",
        "fully_shard",
        "register_fsdp_forward_method",
        "share_comm_ctx",
    }
)
PACKAGE = "torch.distributed.fsdp"
"""Where torch has FSDP1."""
_HOMES = ("fully_sharded_data_parallel", "api", "wrap", "sharded_grad_scaler", "flat_param")


def fsdp1_name(qualified: str) -> str | None:
    """Return the name of a thing of FSDP1's below ``torch.distributed.fsdp``, or None for any other thing.

    Example:
        >>> fsdp1_name("torch.distributed.fsdp.api.StateDictType.FULL_STATE_DICT")
        'StateDictType.FULL_STATE_DICT'
        >>> fsdp1_name("torch.distributed.fsdp.fully_shard") is None
        True
        >>> fsdp1_name("fairscale.nn.FullyShardedDataParallel") is None
        True
    """
    if not qualified.startswith(f"{PACKAGE}."):
        return None
    parts = qualified.removeprefix(f"{PACKAGE}.").split(".")
    if parts[0] in _HOMES:
        parts = parts[1:]
    if not parts or parts[0] in _FSDP2:
        return None
    return ".".join(parts)


def is_private(name: str) -> bool:
    """Tell whether a name of :func:`fsdp1_name` is private to torch.

    Example:
        >>> is_private("_common_utils.FSDP_PREFIX"), is_private("_or_policy")
        (True, False)
    """
    first = name.split(".", maxsplit=1)[0]
    return first.startswith("_") and first not in ARGUMENT_WORDS


_NO_OPTIMIZER = r"(?:,\s*[\w.]*(?:loader|sched|dataset|tok|process|collat)\w*\s*)*"
MODEL_ALONE = (
    r"\baccelerator\.prepare(?:_model)?\(\s*(?:self\.)?(?:\w*_)?(?:model|net|module|policy)\s*"
    + _NO_OPTIMIZER
    + r"\)"
)
"""A call that gives Accelerate a model without its optimizer: right under FSDP1, and refused by its FSDP2."""
PREPARED_MODEL = (
    r"(?:^|_)(?:model|net|network|module|policy|unet|transformer|encoder|controlnet|teacher|student|critic"
    r"|actor|backbone|discriminator|ema|generator|reference|vae)(?:_\w+)?$"
)
"""What models are called that Accelerate is given."""
PREPARED_WITH = r"optim|loader|sched|dataset|config|tokenizer|process|collat|(?:^|_)(?:dl|lr|opt|tok)(?:_|$)"
"""What is called otherwise, though a model's name may be in it: ``critic_opt``."""
