"""What functions and methods of tensors give: a tensor, value by value, or something of the whole."""

from __future__ import annotations

import re


SAME = frozenset(
    {
        "H",
        "T",
        "mH",
        "mT",
        "data",
        "grad",
        "imag",
        "real",
    }
)
"""Attributes of a tensor that are one of its kind."""

_BY_VALUE = frozenset(
    {
        "abs",
        "add",
        "clamp",
        "clamp_max",
        "clamp_min",
        "clip",
        "clone",
        "conj",
        "div",
        "eq",
        "exp",
        "expm1",
        "floor",
        "ge",
        "gt",
        "heaviside",
        "isclose",
        "le",
        "lerp",
        "log",
        "log10",
        "log1p",
        "log2",
        "logical_and",
        "logical_not",
        "logical_or",
        "lt",
        "masked_fill",
        "maximum",
        "minimum",
        "mul",
        "multiply",
        "nan_to_num",
        "ne",
        "neg",
        "pow",
        "reciprocal",
        "relu",
        "round",
        "rsqrt",
        "sigmoid",
        "sign",
        "sgn",
        "sqrt",
        "square",
        "sub",
        "subtract",
        "tanh",
        "where",
    }
)
_SHAPED = frozenset(
    {
        "chunk",
        "diff",
        "flatten",
        "flip",
        "movedim",
        "narrow",
        "permute",
        "ravel",
        "reshape",
        "roll",
        "select",
        "split",
        "squeeze",
        "swapaxes",
        "t",
        "take",
        "tensor_split",
        "masked_select",
        "tile",
        "transpose",
        "tril",
        "triu",
        "unsqueeze",
    }
)
_OF_METHODS = (
    _BY_VALUE
    | _SHAPED
    | {
        "bfloat16",
        "bool",
        "contiguous",
        "cpu",
        "cuda",
        "detach",
        "detach_",
        "double",
        "expand",
        "expand_as",
        "float",
        "half",
        "int",
        "long",
        "repeat",
        "requires_grad_",
        "to",
        "type",
        "type_as",
        "view",
    }
)
"""Methods of a tensor that give one of its kind, beside those that work in place."""
_LIKE = frozenset(
    {"empty_like", "full_like", "ones_like", "rand_like", "randint_like", "randn_like", "zeros_like"}
)
_OF_FUNCTIONS = frozenset(f"torch.{name}" for name in _BY_VALUE | _SHAPED | _LIKE)
_IN_PLACE = re.compile(r"^torch\.(?:nn\.init\.)?[a-z]\w*(?<!_)_$")


def gives_its_kind(method: str) -> bool:
    """Tell whether a method of a tensor gives one of its kind, or the tensor itself.

    Example:
        >>> gives_its_kind("sqrt"), gives_its_kind("sqrt_"), gives_its_kind("__len__")
        (True, True, False)
    """
    return method in _OF_METHODS or (method.endswith("_") and not method.endswith("__"))


def gives_kind_of_given(function: str) -> bool:
    """Tell whether a function gives a tensor of the kind that it is given, or one of these.

    Example:
        >>> gives_kind_of_given("torch.abs_"), gives_kind_of_given("torch.nn.utils.clip_grad_norm_")
        (True, False)
    """
    return function in _OF_FUNCTIONS or _IN_PLACE.match(function) is not None


STATISTICS = frozenset(
    {
        "all",
        "allclose",
        "amax",
        "amin",
        "aminmax",
        "any",
        "argmax",
        "argmin",
        "argsort",
        "bincount",
        "count_nonzero",
        "cumprod",
        "cumsum",
        "dist",
        "dot",
        "equal",
        "histc",
        "histogram",
        "isfinite",
        "isinf",
        "isnan",
        "item",
        "kthvalue",
        "log_softmax",
        "logsumexp",
        "max",
        "mean",
        "median",
        "min",
        "nanmean",
        "nanmedian",
        "nanquantile",
        "nansum",
        "nonzero",
        "norm",
        "prod",
        "quantile",
        "renorm",
        "softmax",
        "sort",
        "std",
        "std_mean",
        "sum",
        "topk",
        "unique",
        "unique_consecutive",
        "var",
        "var_mean",
        "vdot",
    }
)
"""What is of all values of a tensor, as a function of ``torch`` and as a method."""

_LINEAR = frozenset(
    {
        "cond",
        "det",
        "eig",
        "eigh",
        "eigvals",
        "eigvalsh",
        "inv",
        "lstsq",
        "matrix_norm",
        "matrix_rank",
        "norm",
        "pinv",
        "qr",
        "slogdet",
        "svd",
        "svdvals",
        "vector_norm",
    }
)
_COMPARED = frozenset(
    {
        "cosine_similarity",
        "l1_loss",
        "log_softmax",
        "mse_loss",
        "normalize",
        "pairwise_distance",
        "smooth_l1_loss",
        "softmax",
    }
)
OF_THE_WHOLE = frozenset(
    {
        *(f"torch.{name}" for name in STATISTICS),
        *(f"torch.linalg.{name}" for name in _LINEAR),
        *(f"torch.nn.functional.{name}" for name in _COMPARED),
        "torch._foreach_norm",
        "torch._utils._flatten_dense_tensors",
        "torch.cat",
        "torch.concat",
        "torch.einsum",
        "torch.hstack",
        "torch.nn.utils.clip_grad.get_total_norm",
        "torch.nn.utils.get_total_norm",
        "torch.nn.utils.parameters_to_vector",
        "torch.nn.utils.vector_to_parameters",
        "torch.pca_lowrank",
        "torch.qr",
        "torch.stack",
        "torch.svd",
        "torch.svd_lowrank",
        "torch.vstack",
    }
)
"""Functions of which what they give is of all values of the tensors that they are given."""
