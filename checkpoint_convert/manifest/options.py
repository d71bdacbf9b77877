"""What a user can say about a source, and about an output beside its framework."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, get_args

from fsdp_migrate.arguments import FLAG, MAPPING, NOTHING, TEXT, TEXTS, check_arguments, instance_of
from fsdp_migrate.checkpoint_convert.manifest.keys import RenameRule, parse_rename
from fsdp_migrate.checkpoint_convert.manifest.parameter_map import ParameterMap
from fsdp_migrate.errors import ConfigError


if TYPE_CHECKING:
    from collections.abc import Mapping

    from fsdp_migrate.checkpoint_convert.manifest.boxes import Shape
    from fsdp_migrate.checkpoint_convert.manifest.flat_geometry import FlatUnit


StateDictForm = Literal["auto", "sharded", "full"]
DEFAULT_SHARD_SIZE: Final = 5 * 10**9
_SIZE: Final = re.compile(r"\A\s*(\d+)\s*([KMGT]?)(I?)B?\s*\Z", re.IGNORECASE)
_POWERS: Final = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


@dataclass(frozen=True, slots=True)
class ModelOutline:
    """A model as far as its checkpoint needs it: the names and shapes of its parameters, in their order.

    Attributes:
        parameters: The shape of each parameter by name, as ``model.named_parameters()`` yields them: tied
            ones once.
        units: Its FSDP1 units, where the FSDP1 arguments are known too; only flat parameters need them.
        numbered: What an optimizer of the FSDP1 model has numbers for, in their order: names of parameters,
            or with ``use_orig_params=False`` of units and of parameters that are in none.
        aliases: The further names of tied parameters, with the first one.
        apart: The further names of parameters that are tied in the model, and that FSDP1 trained apart
            because they are in different units, with the first name.
        sharding: Over how many ranks a unit is divided: ``"all"``, ``"one"`` (NO_SHARD), or ``"some"``
            (hybrid), which the sizes must tell.
        buffers: The shape of each buffer that a state dict holds; None where nothing is said of them.
        dtypes: The type of each parameter and buffer, where it is known.
        trainable: The parameters that require a gradient; None where nothing is said of that.
        groups: The parameters in each group of the optimizer that is to load the result, where one was given.

    Example:
        >>> list(ModelOutline({"up.weight": (4, 3), "up.bias": (4,)}).parameters)
        ['up.weight', 'up.bias']
    """

    parameters: Mapping[str, Shape]
    units: tuple[FlatUnit, ...] = ()
    numbered: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    apart: Mapping[str, str] = field(default_factory=dict)
    sharding: Literal["all", "one", "some"] = "all"
    buffers: Mapping[str, Shape] | None = None
    dtypes: Mapping[str, str] = field(default_factory=dict)
    trainable: tuple[str, ...] | None = None
    groups: tuple[tuple[str, ...], ...] | None = None

    def __post_init__(self) -> None:
        check_arguments(MAPPING, parameters=self.parameters, aliases=self.aliases, apart=self.apart)
        check_arguments(MAPPING | NOTHING, buffers=self.buffers, dtypes=self.dtypes)
        for name in self.parameters:
            check_arguments(TEXT, parameters=name)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """How to read a source.

    Attributes:
        model: The model that it was saved from.
        parameter_names: The name of every parameter that an optimizer knows by number, in the order of the
            numbers.
        trust_pickle: Carry objects over whose classes are on no list. Nothing of them is executed here, but
            whoever loads the output without ``weights_only`` does.
        part: What the model is called where the source holds several, each of flat parameters; those of the
            others are left out then. "": the one whose units fit. None: all are to be of the model.
        side_parts: Take what Fabric keeps in the ``meta.pt`` beside a folder, such as schedulers, for parts
            of the checkpoint. Else it is one of the files beside it, which its script reads.
    """

    model: ModelOutline | None = None
    parameter_names: tuple[str, ...] | None = None
    trust_pickle: bool = False
    part: str | None = None
    side_parts: bool = False

    def __post_init__(self) -> None:
        check_arguments(instance_of(ModelOutline) | NOTHING, model=self.model)
        check_arguments(TEXTS | NOTHING, parameter_names=self.parameter_names)
        check_arguments(FLAG, trust_pickle=self.trust_pickle, side_parts=self.side_parts)
        check_arguments(TEXT | NOTHING, part=self.part)


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """How an output is written.

    Attributes:
        optimizer_class: The class of the optimizer, by whose name Composer looks for its state.
        max_shard_size: How many bytes of tensors a file of safetensors holds at most.
        renames: Changes of parameters' names, each ``"regex=replacement"``, done one after the other in
            models and optimizers alike, once wrappers' prefixes are off. Each must change a name.
        model_files: What is to stand beside the weights of a Hugging Face model, by name, as
            ``read_model_files`` gives it.
        keep_corrupt_optimizer: Carry an optimizer over that torch saved corrupt (FM217), as it is.
        state_dict_type: The form that Accelerate is to open: ``"sharded"``, ``"full"``, or ``"auto"`` for the
            one that a config beside the checkpoint asks for, and else that of the source.
        map: What becomes of parameters that a later model holds otherwise, such as experts that it holds as
            one, as ``read_map`` gives it. It is done before ``renames``.

    Example:
        >>> OutputOptions(max_shard_size=parse_size("2GB")).max_shard_size
        2000000000
    """

    optimizer_class: str | None = None
    max_shard_size: int = DEFAULT_SHARD_SIZE
    renames: tuple[str, ...] = ()
    model_files: Mapping[str, bytes] = field(default_factory=dict)
    keep_corrupt_optimizer: bool = False
    state_dict_type: StateDictForm = "auto"
    map: ParameterMap | None = None

    def __post_init__(self) -> None:
        check_arguments(instance_of(ParameterMap) | NOTHING, map=self.map)
        check_arguments(TEXT | NOTHING, optimizer_class=self.optimizer_class)
        check_arguments(TEXTS, renames=self.renames)
        check_arguments(MAPPING, model_files=self.model_files)
        for file, content in self.model_files.items():
            _check_file_name(file)
            check_arguments(instance_of(bytes), model_files=content)
        check_arguments(FLAG, keep_corrupt_optimizer=self.keep_corrupt_optimizer)
        if type(self.max_shard_size) is not int or self.max_shard_size < 1:
            msg = f"`max_shard_size` is {self.max_shard_size!r}; expected a number of bytes of at least 1."
            raise ConfigError(msg, field="max_shard_size")
        check_arguments(TEXT, state_dict_type=self.state_dict_type)
        if self.state_dict_type not in get_args(StateDictForm):
            words = ", ".join(repr(word) for word in get_args(StateDictForm))
            msg = f"`state_dict_type` is {self.state_dict_type!r}; expected one of {words}."
            raise ConfigError(msg, field="state_dict_type")
        for text in self.renames:
            parse_rename(text)
        name = self.optimizer_class
        if name is not None and not name.isidentifier():
            msg = f"`optimizer_class` is {name!r}; expected the name of a class, such as `DecoupledAdamW`."
            raise ConfigError(msg, field="optimizer_class")

    @property
    def rules(self) -> tuple[RenameRule, ...]:
        """Return the renames as rules."""
        return tuple(parse_rename(text) for text in self.renames)


def _check_file_name(name: object) -> None:
    """Check that a file stands in the output, and in the place of nothing that the conversion writes."""
    check_arguments(TEXT, model_files=name)
    text = str(name)
    parts = text.split("/")
    if "\0" in text or any(part in {"", ".", ".."} for part in parts) or not _is_encodable(text):
        problem = "which is no name of a file in the output"
    elif ".safetensors" in parts[0]:
        problem = "which is where the conversion writes the weights"
    else:
        return
    msg = f"`model_files` names {text!r:.200}, {problem}; expected names such as 'config.json'."
    raise ConfigError(msg, field="model_files")


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def parse_size(text: str, field: str = "max_shard_size") -> int:
    """Return the bytes that a text such as ``5GB`` or ``512MiB`` says; errors name the option ``field``.

    Raises:
        ConfigError: It says none.

    Example:
        >>> parse_size("5GB"), parse_size("512MiB"), parse_size("4096")
        (5000000000, 536870912, 4096)
    """
    check_arguments(TEXT, **{field: text})
    match = _SIZE.match(text)
    if match is None or int(match[1]) == 0:
        msg = f"`{field}` is {text!r}; expected a size such as '5GB' or '512MiB'."
        raise ConfigError(msg, field=field)
    unit: int = (1024 if match[3] else 1000) ** _POWERS[match[2].upper()]
    return int(match[1]) * unit
