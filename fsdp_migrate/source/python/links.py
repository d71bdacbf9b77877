"""What the other files of a project say of one: which of its names are FSDP1 models."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Mapping

    from fsdp_migrate.source.python.call_signatures import Signature
    from fsdp_migrate.source.python.known_constants import Constants


Kinds = frozenset[str]
"""What an expression may be: ``fsdp``, ``ddp``, ``fsdp2``, or nothing that is known.

What it holds stands behind the steps to it, as in :mod:`fsdp_migrate.source.python.held`.
"""

Deeds = frozenset[tuple[str, str, int, str]]
"""Functions by name, what each does to a model or a list of parameters that it is given (the last pass that
it runs, what becomes of gradients, or that it writes to weights), and to which argument, by place and name.
Methods, ``Average.swap``, by what their objects are made with."""

Fields = tuple[tuple[str, ...], bool]
"""What a class without a constructor of its own is made of, in order; and whether it is a named tuple."""


Sharded = tuple[int, str, Kinds]
"""A parameter of a function that shards it in place: its place, its name, and what it is then."""


GivenParameters = tuple[int, int, int, str]
"""Which part of a tuple a function gives (-1: all that it gives), and of how many, that holds parameters; and
of which argument, by place and name, they are."""
HandedList = tuple[int, str, int, str, str]
"""Two arguments of a function or a class, by place and name: a model that it shards, and a list of parameters
that it takes for the model's since; and the framework by which it shards, if that is none of FSDP1's."""
OBJECT = -1
"""In place of an argument's: the object whose method it is."""
PART = -2
"""The same: another part of the tuple, whose number is the name."""


@dataclass(frozen=True)
class Links:
    """What is known of one file's names by the project's others. Processes can be sent it."""

    gives: Mapping[str, Kinds] = field(default_factory=dict)
    """What calling an imported thing gives, by its name as imports write it."""
    is_given: Mapping[tuple[str, str], Kinds] = field(default_factory=dict)
    """What a name of a function, or ``self.name`` of a class, is given: ``("Trainer.fit", "model")``."""

    given_elsewhere: frozenset[tuple[str, str]] = frozenset()
    """The parameters of this file's functions that calls in other files give models."""
    wraps_given: Mapping[str, frozenset[tuple[int, str]]] = field(default_factory=dict)
    """The arguments, by place and name, of whose modules an imported function wraps parts in place."""

    shards_given: Mapping[str, frozenset[Sharded]] = field(default_factory=dict)
    """The arguments that an imported function shards in place, and may give another name."""

    gives_parameters: Mapping[str, frozenset[GivenParameters]] = field(default_factory=dict)
    """What calling an imported function, or a method, gives of the parameters of what it is given."""
    keeps_parameters: Mapping[str, frozenset[tuple[int, str]]] = field(default_factory=dict)
    """The arguments, by place and name, of whose parameters the objects of a class keep some."""

    takes_lists: Mapping[str, frozenset[HandedList]] = field(default_factory=dict)
    """What shards a model itself, and takes lists of parameters that it is given for that model's since."""
    keeps_old: frozenset[tuple[int, str]] = frozenset()
    """The lines of this file that keep parameters of a model that another class shards, and by what."""

    names: Mapping[str, str] = field(default_factory=dict)
    """What imports from the project's own files stand for, where that is FSDP1's."""
    objects: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By frameworks' classes the names here that are objects of them, which other files make."""
    heirs: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Classes of other files, as imports write them, with those of frameworks that their bases lead to."""
    taken: frozenset[str] = frozenset()
    """The imported names that other files import from this one."""
    optimizers: frozenset[str] = frozenset()
    """The classes of optimizers in this file that others, which shard models, make."""
    whole_optimizers: frozenset[str] = frozenset()
    """Those of them that are made of plain models alone, which a framework shards below."""
    beside_frameworks: bool = False
    """Whether frameworks shard models of the project, whose optimizers those may be."""
    wrappers: frozenset[str] = frozenset()
    """Imported classes that are called as wrappers are, and derive from none of FSDP1's."""
    checks: frozenset[str] = frozenset()
    """Imported functions that ask for FSDP1's class and nothing else, as imports write them."""
    asking: Mapping[str, frozenset[tuple[int, str]]] = field(default_factory=dict)
    """Imported functions that ask whether something is of a class, and which arguments, by place and name."""
    looking: Mapping[str, frozenset[tuple[int, str]]] = field(default_factory=dict)
    """Imported functions that only look at a function which they are given, in the same way."""
    wrapped_classes: frozenset[str] = frozenset()
    """Modules' classes of this file that write to weights, whose objects a file that uses FSDP1 makes."""
    classes_kept_whole: frozenset[str] = frozenset()
    """Those of them of which FSDP1 may not have taken up what parts were given."""
    sharded_classes: frozenset[str] = frozenset()
    """Modules' classes of this file that go through their own parameters, and are sharded as a whole."""
    subclasses: frozenset[str] = frozenset()
    """Imported classes that derive from FSDP1's, as imports write them."""
    no_modules: frozenset[str] = frozenset()
    """Classes of the project that this file asks for and that no module is of, as imports write them."""
    own_optimizers: frozenset[str] = frozenset()
    """The project's own optimizers that are made here, and what holds one, as imports write their classes."""
    foreign_optimizers: frozenset[str] = frozenset()
    """Classes of this file that derive from other packages' optimizers, and may step sharded models."""
    own_states: frozenset[str] = frozenset()
    """The classes of the project's own optimizers whose ``state_dict`` adds something to torch's."""
    methods: frozenset[str] = frozenset()
    """Methods of this file's classes that another file calls on sharded models."""
    state_methods: frozenset[tuple[str, str]] = frozenset()
    """Classes and methods of this file's modules that others call on sharded models, for states."""
    optimizer_methods: frozenset[str] = frozenset()
    """Methods of this file's classes by which models that another file shards make their optimizers."""
    optimizer_makers: frozenset[str] = frozenset()
    """Functions of this file that make optimizers which a framework is given with its model."""
    chosen_optimizers: Mapping[tuple[int, int], frozenset[str]] = field(default_factory=dict)
    """The classes that something which is given parameters may be, where it is called: by line and column."""
    fields: Mapping[str, Fields] = field(default_factory=dict)
    """The fields of classes of other files that are made here, by their names as imports write them."""
    has_recurrent_layers: bool = False
    """Whether it makes recurrent layers, in a project whose models Accelerate shards."""
    beside_getters: bool = False
    """Whether it has models of transformers' kind of its own, in such a project: getters, or their base."""
    has_spectral_norms: bool = False
    """Whether it has layers of ``spectral_norm``, in such a project, where anything asks for bf16 or fp16."""
    reads_embeddings: bool = False
    """Whether it reads the weights of embeddings, in such a project."""
    copies_modules: bool = False
    """Whether it has PEFT copy modules to train them, in such a project."""
    beside_meta: str = ""
    """What some ranks alone make on the meta device, in a project with HF Trainer's arguments."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """What other files set Accelerate's variables to, in a process that runs this one as well."""
    frameworks: frozenset[str] = frozenset()
    """The frameworks that others make shard by FSDP1, and by which this file has models prepared."""
    shards_on_several: bool = False
    """Whether Lightning's FSDP1 strategy is made only where there are several ranks."""
    unsharded: frozenset[tuple[int, int]] = frozenset()
    """The first and the last line of what runs here only where the project makes no sharded model."""
    shuts_out_quantizers: bool = False
    """Whether it is made only where weights are not quantized."""
    for_quantizers: frozenset[str] = frozenset()
    """Functions of this file that are called only where weights are quantized."""
    is_trained: bool = False
    """Whether others train by Lightning's FSDP1 strategy, and this file asks the Trainer for it."""
    by_lightning: bool = False
    """Whether this file has what Lightning's FSDP1 strategy put into names, or a class derived from that."""
    mixins: frozenset[str] = frozenset()
    """Classes of this file that LightningModules derive from, beside Lightning's own."""
    has_units: bool = False
    """Whether Lightning's FSDP1 wraps parts of a module by a policy, whose parameters a step sees sharded."""
    run_by_trainer: Mapping[str, str] = field(default_factory=dict)
    """This file's classes that are Hugging Face's Trainers, or callbacks, where one shards by FSDP1."""
    given_words: frozenset[tuple[str, str]] = frozenset()
    """Functions of this file, with the parameter to which ``fsdp`` of the Trainer's arguments comes."""
    own_hooks: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By such a class, or a LightningModule, the methods of its own that run once the model is sharded."""
    beside_lightning: bool = False
    """Whether this file has an option for a strategy, in a project whose other files use Lightning."""
    lightning: Mapping[str, str] = field(default_factory=dict)
    """LightningModules of other files, as imports write them, and why they can be given no hook, if so."""
    lightning_homes: Mapping[str, str] = field(default_factory=dict)
    """What each of them is called where it stands, and in which file."""
    hooks: Mapping[str, str] = field(default_factory=dict)
    """The hooks that LightningModules of this file get, because another file's Trainer trains them."""
    clips_itself: bool = False
    """Whether a model's class of the project has a ``clip_grad_norm_`` of its own."""
    saves_itself: bool = False
    """Whether a module of the project has a ``save_pretrained`` of its own that takes no state."""
    own_saves: frozenset[str] = frozenset()
    """The classes of the project, modules or not, whose own ``save_pretrained`` takes no state."""
    own_groups: bool = False
    """Whether a file of the project shards a model over another group than that of all ranks."""
    no_shard: bool = False
    """Whether a file of the project that uses FSDP1 chooses ``NO_SHARD``."""
    hybrid: bool = False
    """Whether a file of the project, no test, may choose ``HYBRID_SHARD`` for the plugin of this one."""
    ignores: bool = False
    """Whether a file of the project tells FSDP to ignore modules or parameters."""
    ignored: frozenset[str] = frozenset()
    """The attributes of models that FSDP is told to ignore wherever the project shards."""
    made_parts: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By the attributes of the project's objects the classes that these are made of; of lists their items."""
    calls_the_class: bool = False
    """Whether a file of the project names FSDP1's class itself, and no framework's words alone."""
    unit_classes: frozenset[str] = frozenset()
    """The classes that policies of the project name."""
    unit_forwards: frozenset[tuple[int, str]] = frozenset()
    """Parts of modules of this file that are units, whose forward is taken: line and text."""
    counting_methods: frozenset[str] = frozenset()
    """Methods and properties by which modules of the project count their own parameters."""
    counting_functions: frozenset[str] = frozenset()
    """Functions of the project that count the parameters of a model that they are given."""
    state_hooks: bool | None = None
    """Whether hooks of the project may put keys into the states of models; None of a file alone."""
    falls_back: bool = False
    """Whether a file of the project shards by FSDP2 itself, and by FSDP1 only where that is missing."""
    has_fsdp2: bool = False
    """Whether a file of the project shards by FSDP2 itself, beside FSDP1."""
    fsdp2_alone: bool = False
    """Whether FSDP2 alone shards the project's models, and this file asks for FSDP1's class."""
    other_fsdp: bool = False
    """Whether this file speaks of FSDP in a project that has another package's, or one of its own, alone."""
    gives_fsdp2s: frozenset[str] = frozenset()
    """Functions, as this file calls them, that give FSDP2's model, DDP's or a plain one."""
    nested: frozenset[int] = frozenset()
    """The lines of this file that call FSDP1's class for parts of a model which is wrapped as well, where
    functions of several files do it."""
    wrapped_again: frozenset[int] = frozenset()
    """The lines of this file that call FSDP1's class for a model which a function of another file wraps."""
    called_here: frozenset[str] = frozenset()
    """Functions of this file of which every call in the project is seen, and stands in it."""
    runners: frozenset[tuple[str, str | int]] = frozenset()
    """Functions of the project that call what they are given, with the parameter's name, and its place."""
    deeds: Deeds = frozenset()
    """What functions of the project do to a model that they are given, or to a list of its parameters."""
    gives_files: frozenset[str] = frozenset()
    """Functions of the project that give what ``torch.load`` gives."""
    given_files: frozenset[tuple[str, int, str]] = frozenset()
    """Functions that are given it, and for which argument: its place, or its name if it has one."""
    called_summoned: frozenset[str] = frozenset()
    """Functions and methods of the project that are called where models show their whole parameters alone."""
    shards_parts: frozenset[str] = frozenset()
    """Modules of this file that shard parts of themselves, and that nothing in the project shards."""
    asked_for_parts: frozenset[str] = frozenset()
    """The same, of which something asks for their parameters or states."""
    types_elsewhere: bool = False
    """Whether another file sets state dict types, or gives models away in contexts that do."""
    type_elsewhere: str = ""
    """The one type that other files set, where all of them name it alone: ``SHARDED_STATE_DICT``."""

    gives_contexts: frozenset[str] = frozenset()
    """Functions, methods and classes of the project by which a block enters a state dict context."""

    replaced_in_vain: frozenset[str] = frozenset()
    """What this file's tests replace by name in modules of the project that have no such name."""
    keeps_names: bool = False
    """Whether a file of the project may shard by ``use_orig_params=True``."""
    names_at_run: bool = False
    """The same, where no text of the project shows the value: ``use_orig_params=cfg.x``."""
    unseen_names: bool = False
    """Whether a file gives FSDP1's class by two stars what no file shows: ``use_orig_params`` perhaps."""
    made_by_others: bool | None = None
    """Whether a function of another package makes FSDP1's models in the project; None of a file alone."""
    own_packages: frozenset[str] = frozenset()
    """Which of the packages that make such models the project is itself."""

    keeps_module: bool = False
    """Whether the project puts what FSDP2 shards into an object that has it as ``.module``."""

    foreign: frozenset[str] = frozenset()
    """Packages that this file imports from and the project does not have, the frameworks' left out."""

    defined: frozenset[str] = frozenset()
    """The names of all functions, methods and classes of the project."""
    stepping: frozenset[str] = frozenset()
    """The classes of the project that may be optimizers: by their bases, a ``step``, or groups."""

    without_group: bool = False
    """Whether this is a test that calls nothing which makes a process group: no model is sharded there."""

    not_run: frozenset[str] = frozenset()
    """Methods of this file's classes that those which shard what they are about have their own of."""

    derived_elsewhere: frozenset[str] = frozenset()
    """The classes of this file that classes of other files derive from."""

    is_left_whole: bool | None = False
    """Whether nothing of it is turned, as its runs wrap by FSDP1 alone; None where it shows that itself."""

    failure: str | None = None
    """How this package failed on the file, in going through it with the others."""

    is_near: bool = False
    """Whether a sharded model may come to this file, which does something with models."""

    prepared: Links | None = None
    """What is told where ``prepare_fully_shard`` is taken for FSDP1's class; None if nothing calls it."""
    is_far: bool = False
    """Whether no import leads from what shards to this file, which clips by a method of something."""
    shards_nothing: bool = False
    """Whether nothing of the project shards a model by FSDP, though this file names a class for it."""
    has_own: frozenset[str] = frozenset()
    """The methods of FSDP1's class that classes of the project have of their own."""

    constants_given: Mapping[tuple[str, str], tuple[Constants, ...]] = field(default_factory=dict)
    """The constants of the calls that give models to parameters of this file's functions, if all are seen."""
    plain_calls: frozenset[Signature] = frozenset()
    """Calls of this file that give plain models, by the constants that they are given."""

    above_sharding: frozenset[tuple[int, str]] = frozenset()
    """Expressions of models that the same function shards below, and which are plain there: line and text."""

    plain: frozenset[tuple[int, str]] = frozenset()
    """Expressions of a file to which a model may come that the project shows to be plain: line and text."""

    def __bool__(self) -> bool:
        """Whether there is a reason to look at the file."""
        return self.is_near or self.is_linked

    @functools.cached_property
    def given_sharded(self) -> frozenset[str]:
        """The functions of this file that others give sharded models."""
        return frozenset(scope for (scope, _), kinds in self.is_given.items() if "fsdp" in kinds)

    @property
    def is_linked(self) -> bool:
        """Whether anything is known of its names."""
        known = (
            self.gives,
            self.is_given,
            self.wraps_given,
            self.shards_given,
            self.keeps_old,
            self.takes_lists,
            self.names,
            self.optimizers,
            self.foreign_optimizers,
            self.optimizer_makers,
            self.methods,
            self.state_methods,
            self.hooks,
            self.frameworks,
            self.has_recurrent_layers,
            self.beside_getters,
            self.has_spectral_norms,
            self.reads_embeddings,
            self.copies_modules,
            self.run_by_trainer,
            self.given_words,
            self.wrapped_classes,
            self.sharded_classes,
            self.unit_forwards,
            self.failure,
            self.prepared,
        )
        is_told = self.is_trained or self.beside_lightning or self.by_lightning or self.is_far
        return is_told or any(map(bool, (*known, self.optimizer_methods, self.shards_parts)))


NOTHING = Links()
ALONE = Links(is_left_whole=None)
"""Of a source beside which there is no other."""
