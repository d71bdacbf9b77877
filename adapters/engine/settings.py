"""What a config or a command does not say itself, and is told beside it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class StrategyReader:
    """A source that reads ``strategy: fsdp`` of a config itself, and whether it makes the strategy of it."""

    path: str
    makes_strategy: bool


@dataclass(frozen=True, slots=True)
class OwnHook:
    """A LightningModule's ``configure_model``: whose it is, where, and the lines at which it may end."""

    owner: str
    place: str
    returns: tuple[int, ...] = ()
    others: int = 0
    """How many more classes of the project have one, where nothing says which is run."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a text does not say: the number of ranks and of nodes, which Lightning is used, and other files.

    ``is_converted`` tells of the name of another file whether FSDP2's settings alone stand in it,
    ``refusal`` why it is refused itself, or None, ``lacks_fsdp`` whether it is there and names no
    FSDP, ``number`` which number a word of a command is, or None, and ``value`` what a variable holds that
    one place alone sets, or None. ``is_own`` tells of the script
    that a command starts whether it has ``--fsdp`` for an argument of its own, ``lacks_transformers`` of
    the project around whether no source of it imports transformers, ``decays_alike`` whether none has a
    Trainer of Hugging Face's, or chooses by their names which parameters are decayed, and ``ties`` where a
    model of it ties weights and has no method ``tie_weights``, or nothing; ``holds`` the same of a model
    that holds one of transformers, which may, ``defines`` whether it has a class of a name, ``embeds``
    whether that class holds the model's embeddings, or None where it has none, ``shares`` where it trains
    a model whose encoder and decoder hold these, or nothing, and ``spectral`` where it
    makes a layer of ``spectral_norm``, or nothing, and ``packs`` the same of weights in 4 bits;
    ``packs_none`` tells whether it imports nothing that loads such; ``hook`` names the ``configure_model``
    that a class of a name has, or one of the project's, or None, and ``classifies`` tells whether its
    models of transformers are classifiers, as their names say. ``names_packed`` tells of another file's
    name whether it asks for weights in 4 bits, ``is_packed`` that the command does. ``file_name`` is what
    the text's own file is called. ``is_command`` tells that the keys are flags of a command, ``adds_json``
    that it had no ``--fsdp_config`` before, and ``environment`` what is handed on to Accelerate beside it.
    ``is_hydra`` tells of a file of Lightning's that another one chooses it as of a group of Hydra's.
    ``reader`` names the source that reads ``strategy: fsdp`` itself, where nothing of the project reads
    classes in YAML; None where there is none. ``words_given`` returns the words of ``--fsdp`` beside
    which the project's launch lines name a file, and a place, and ``transformers`` its version that is
    installed.
    """

    world_size: int | None = None
    nodes: int | None = None
    lightning: str | None = None
    is_converted: Callable[[str], bool] = lambda name: False
    number: Callable[[str], int | None] | None = None
    refusal: Callable[[str], str | None] = lambda name: None
    lacks_fsdp: Callable[[str], bool] = lambda name: False
    value: Callable[[str], str | None] = lambda word: None
    is_own: Callable[[str], bool] = lambda script: False
    lacks_transformers: Callable[[], bool] = lambda: False
    decays_alike: Callable[[], bool] = lambda: False
    ties: Callable[[], str] = lambda: ""
    holds: Callable[[], str] = lambda: ""
    defines: Callable[[str], bool] = lambda name: False
    embeds: Callable[[str], bool | None] = lambda name: None
    shares: Callable[[], str] = lambda: ""
    spectral: Callable[[], str] = lambda: ""
    packs: Callable[[], str] = lambda: ""
    packs_none: Callable[[], bool] = lambda: False
    hook: Callable[[str], OwnHook | None] = lambda module: None
    classifies: Callable[[], bool] = lambda: False
    names_packed: Callable[[str], bool] = lambda name: False
    is_packed: bool = False
    is_command: bool = False
    adds_json: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    is_hydra: bool = False
    file_name: str = ""
    words_given: Callable[[str], tuple[str, str] | None] = lambda name: None
    transformers: Callable[[], str] = lambda: ""
    reader: Callable[[bool], StrategyReader | None] = lambda is_hydra: None
