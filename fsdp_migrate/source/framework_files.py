"""Files that give Accelerate, Fabric or a Trainer a model, in a project that asks these for FSDP1."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from fsdp_migrate.adapters.engine.accelerate_switch import SWITCH
from fsdp_migrate.adapters.engine.optimizer_names import OF_BITSANDBYTES
from fsdp_migrate.source.asked_around import (
    ASKS_ACCELERATE,
    ASKS_BY_WORD,
    ASKS_FABRIC,
    ASKS_HF,
    ASKS_LAUNCHER,
    COMMENT,
    LAUNCHES_IT,
    SWITCHED,
    asked_around,
    asks,
    fsdp2_around,
    settings_around,
)
from fsdp_migrate.source.composer_project import ComposerProject, run_by_composer
from fsdp_migrate.source.framework_models import FrameworkModels
from fsdp_migrate.source.heirs import heirs, of_others, strategies_of_others, with_makers
from fsdp_migrate.source.hf_trainers import with_heirs
from fsdp_migrate.source.launched_otherwise import launched_otherwise
from fsdp_migrate.source.lightning_files import homes_of_modules
from fsdp_migrate.source.lightning_prefix import prefixed_by_lightning
from fsdp_migrate.source.lightning_project import LightningProject, run_by_lightning, wraps
from fsdp_migrate.source.made_objects import KINDS, made_objects
from fsdp_migrate.source.own_trainers import own_trainers
from fsdp_migrate.source.project import is_a_test
from fsdp_migrate.source.python.accelerators import prepares
from fsdp_migrate.source.python.fabric_models import sets_up
from fsdp_migrate.source.python.lightning_models import has_option, trained_elsewhere, using_lightning
from fsdp_migrate.source.python.links import NOTHING
from fsdp_migrate.source.python.meta_models import made_on_meta
from fsdp_migrate.source.python.no_shard import may_choose_hybrid
from fsdp_migrate.source.reach import Imported, imports_in
from fsdp_migrate.source.runs_without_fsdp import RunsWithoutFSDP


if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from pathlib import Path

    from fsdp_migrate.source.project import Project
    from fsdp_migrate.source.python.links import Links


# By framework: what asks it for FSDP1, what gives it a model, what a file makes that says so by itself, and
# what may ask for FSDP2, so that nothing is told.
_WORDS: dict[str, tuple[re.Pattern[str], Callable[[str], object], re.Pattern[str], re.Pattern[str]]] = {
    "accelerate": (
        re.compile(r"\bFullyShardedDataParallelPlugin\("),
        prepares,
        re.compile(r"\bAccelerator\("),
        re.compile(r"fsdp_version(?!\s*=\s*1\b)"),
    ),
    "fabric": (
        re.compile(r"\bFSDPStrategy\(|\bFabric\([^()]*strategy\s*=\s*['\"]fsdp"),
        sets_up,
        re.compile(r"\bFabric\("),
        re.compile(r"\bModelParallelStrategy\("),
    ),
}
_ASKED = "DistributedType.FSDP"
_ITS_FILE = "pytorch_model_fsdp"
_NAMES_ITS_FILE = re.compile(rf"^[^#\n]*['\"/]{_ITS_FILE}(?:_\d|\.bin|['\"/])", re.MULTILINE)
# Without one of these words a file is not looked at: they are found a hundred times as fast as expressions.
_TELLING = {
    "accelerate": (
        *("FullyShardedDataParallelPlugin", "fsdp_plugin", "ACCELERATE_USE_FSDP"),
        _ASKED,
    ),
    "fabric": ("FSDPStrategy", "Fabric"),
}
_OF_TRAINERS = ("Trainer", "Callback")
_SHARDS = re.compile(r"\bFullyShardedDataParallel|\bfully_shard\b|\bprepare_fully_shard\b")
_SCALER = "ShardedGradScaler"
_WRAPS = re.compile(r"\b(?:FSDP|FullyShardedDataParallel|fully_shard)\(")
# A Fabric whose strategy is chosen elsewhere: `Fabric(strategy=args.strategy)`, `Fabric(**cfg.fabric)`.
_HANDED = re.compile(r"\bFabric\([^()]*(?:\bstrategy\s*=\s*(?!None\b)[A-Za-z_]|\*\*)")
_WORD = re.compile(r"['\"]fsdp(?:_cpu_offload)?['\"]")
# What asks for FSDP1 in the file itself that gives it a model.
_USES_TRAINER = re.compile(
    r"\bclass \w+\([^)]{0,2000}?(?:Trainer|Callback)\b|Trainer\("
    r"|\btype\([^()]{0,200}\([^()]{0,2000}?Trainer\b|\bTrainer\.\w+[ \t]*=(?!=)"
)
_ARGUMENTS = re.compile(
    r"TrainingArguments\b[\s\S]*?\b(?:optim|label_smoothing_factor)\b"
    rf"|['\"](?:{'|'.join(sorted(OF_BITSANDBYTES))})['\"]"
)
# What reads the Trainer's `fsdp`, or that of its arguments, may stand in another file too.
_READS_FSDP = re.compile(
    r"(?:args|arguments|trainer)\.fsdp\b(?!_)|\bTrainer\b[\s\S]*\w\.fsdp\b(?!_)", re.IGNORECASE
)
_WORDS_OF_HF = ("full_shard", "shard_grad_op", "hybrid_shard")
_SAYS_HF = re.compile(
    r"\bfsdp['\"]?\s*[:=]\s*['\"]+(?:full_shard|shard_grad_op|hybrid_shard)"
    r"|--fsdp[\s'\",=\\]+(?:full_shard|shard_grad_op|hybrid_shard)"
)
# A project's own switch: `if args.using_fsdp:`, and below it `model = accelerator.prepare_model(model)`.
_PREPARES_BY_SWITCH = re.compile(
    r"^([ \t]*)if[ \t]+(?:[\w.]+[ \t]+and[ \t]+)?[\w.]*fsdp\w*[ \t]*(?:and\b[^\n]*)?:[^\n]*\n"
    r"(?:\1[ \t]+\S[^\n]*\n|[ \t]*\n){0,20}?\1[ \t]+[^\n#]*\baccelerator\.prepare(?:_model)?\(",
    re.MULTILINE | re.IGNORECASE,
)
_ASKS_A_TRAINER = re.compile(r"trainer\.is_fsdp_enabled\b", re.IGNORECASE)
_ASKS_ITSELF = re.compile(r"\bself\.is_fsdp_enabled\b")
# `if training_args.fsdp:`, `if len(args.fsdp) > 0:`; not where that raises.
_ASKS_ARGUMENTS = re.compile(
    r"\bif\s+(?:[^\n]*\band\s+)?(?:len\()?(?:\w+\.)*(?:train\w*_)?args\.fsdp\b(?!_)(?![^\n]*:\s*\n?\s*raise\b)"
)
_LAUNCHES = "accelerate"
_FLAG = re.compile(r"--use[_-]fsdp\b")
_RECURRENT = re.compile(r"\b(?:nn\.)?(?:GRU|LSTM|RNN)\b")
_PICKS_LAYERS = re.compile(r"\bgetattr\(\s*(?:torch\.)?nn\s*,")
_NAMES_RECURRENT = re.compile(r"['\"](?:GRU|LSTM|RNN)['\"]")
_PLUGIN = "FullyShardedDataParallelPlugin"
_GETTERS = re.compile(
    r"\bdef get_(?:in|out)put_embeddings\(\s*self\s*,|^class \w+\([^)]*\bPreTrainedModel\b", re.MULTILINE
)
_EMBEDDINGS = re.compile(
    r"(?:\bget_input_embeddings\(\)|\bself(?:\.\w+)*\.(?:embed_in|embed_tokens|shared|word_embeddings|wte))\.weight\b"
    r"|\b(\w+)\s*=\s*self[\w.]*\.get_input_embeddings\(\)[\s\S]{0,2000}?\b\1\.weight\b"
)
_COPIES = re.compile(r"\bmodules_to_save\s*=")
_SPECTRAL = "spectral_norm("
_CASTS = re.compile(
    r"\bmixed[_-]precision\b[^\n#]{0,60}?\b(?:bf16|fp16|bfloat16|float16|half)"
    r"|\b(?:bf16|fp16)['\"]?\s*[:=]\s*(?:['\"]?(?:true|auto)\b|(?!['\"]?(?:false|none)\b)[a-z_])|--(?:bf16|fp16)\b",
    re.IGNORECASE,
)
_IMPORTS_TRAINER = re.compile(r"^[ \t]*(?:from|import)\s+(?:transformers|trl)\b", re.MULTILINE)
_UNSLOTH = re.compile(r"^[ \t]*from[ \t]+unsloth\b", re.MULTILINE)
_MAKERS = re.compile(r"\b(?!\w*(?:Config|Processor|Tokenizer)\b)(\w+)\.(?:from_config|from_pretrained)\(")
# A model may come of another file, too: `model = get(config)`.
_SET = re.compile(r"^[ \t]*\w*model(?:[ \t]*,[ \t]*\w+){0,9}[ \t]*=[ \t]*([A-Za-z_][\w.]*)", re.MULTILINE)
_FROM_UNSLOTH = re.compile(r"Fast\w*Model\.|get_peft_model$|None$|\w*model\b")
_UNSLOTHS = re.compile(r"Fast\w*Model")
_GIVEN_TO_FSDP1 = re.compile(r"\bFullyShardedDataParallel\b[\s\S]*\.(?:state_dict_type|summon_full_params)\(")
_OWN = {
    "accelerate": re.compile(
        r"\bFullyShardedDataParallelPlugin\(|\bfsdp_plugin\s*=\s*(?!None)\w"
        rf"|{SWITCHED}"
    ),
    "fabric": re.compile(r"\bFSDPStrategy\(|\bFabric\([^()]*strategy\s*=\s*['\"]fsdp"),
}


def with_frameworks(
    texts: Mapping[Path, str],
    models: FrameworkModels,
    links: dict[Path, Links],
    around: Iterable[str | os.PathLike[str]] = (),
) -> dict[Path, Links]:
    """Return what each file is told of by the others, with whose Accelerator, Fabric or Trainer it has."""
    if not models.files and not any(map(_SHARDS.search, texts.values())):
        scaled = (path for path, text in texts.items() if _SCALER in text)
        links = links | {path: replace(links.get(path, NOTHING), shards_nothing=True) for path in scaled}
    told: dict[Path, set[str]] = {path: {"transformers"} for path in models.trainers}
    # What names the Trainer's optimizer may stand in another file than the Trainer.
    named = (
        (path, text)
        for path, text in texts.items()
        if models.trainers and (_ARGUMENTS.search(text) or (".fsdp" in text and _READS_FSDP.search(text)))
    )
    of_arguments = (path for path, text in named if not _is_unsloths(text))
    told |= {path: {"transformers"} for path in of_arguments}
    composed = models.composer.files if models.composer is not None else ()
    for name, paths in {**models.told, "composer": composed}.items():
        for path in paths:
            told.setdefault(path, set()).add(name)
    links = links | (_of_lightning(models.lightning, links) if models.lightning is not None else {})
    trained = models.lightning.files if models.lightning is not None else ()
    prefixed = {*prefixed_by_lightning(texts, trained), *strategies_of_others(models.heirs)}
    links |= {path: replace(links.get(path, NOTHING), by_lightning=True) for path in prefixed}
    if any(may_choose_hybrid(text) for path, text in texts.items() if not is_a_test(path)):
        plugins = (path for path, text in texts.items() if _PLUGIN in text)
        links |= {path: replace(links.get(path, NOTHING), hybrid=True) for path in plugins}
    options = _with_options(texts)
    links |= {path: replace(links.get(path, NOTHING), beside_lightning=True) for path in options}
    links |= {path: replace(links.get(path, NOTHING), objects=each) for path, each in models.objects.items()}
    links |= {path: replace(links.get(path, NOTHING), heirs=each) for path, each in models.heirs.items()}
    made = (path for path, each in links.items() if each.optimizers and models.files)
    links |= {path: replace(links[path], beside_frameworks=True) for path in made}
    if models.trainers or "accelerate" in models.users:
        links |= _with_layers(texts, models, links, around)
    if on_meta := {*map(made_on_meta, texts.values())} - {""} if models.trainers else set():
        # "buffers" are more than "parameters"
        links |= {path: replace(links.get(path, NOTHING), beside_meta=min(on_meta)) for path in told}
    known = {path: links.get(path, NOTHING) for path in told}
    return links | {
        path: replace(
            each,
            frameworks=frozenset(told[path]),
            run_by_trainer=models.classes(path),
            own_hooks={**each.own_hooks, **models.own_hooks(path)},
        )
        for path, each in known.items()
    }


def _with_layers(
    texts: Mapping[Path, str],
    models: FrameworkModels,
    links: Mapping[Path, Links],
    around: Iterable[str | os.PathLike[str]],
) -> dict[Path, Links]:
    """Return what is told of the files with layers that Accelerate's FSDP2 takes otherwise than FSDP1."""
    known = dict(links)
    imported = Imported(texts, {*models.trainers, *models.users.get("accelerate", ())})
    near = {path: text for path, text in texts.items() if imported.is_beside_runs(path)}
    is_named = any(map(_NAMES_RECURRENT.search, texts.values()))
    words = (_RECURRENT, _PICKS_LAYERS) if is_named else (_RECURRENT,)
    recurrent = (
        path
        for path, text in near.items()
        if any(word.search(text) for word in words) and (not is_a_test(path) or _runs_a_framework(text))
    )
    known |= {path: replace(known.get(path, NOTHING), has_recurrent_layers=True) for path in recurrent}
    own = (path for path, text in near.items() if _GETTERS.search(text) and not is_a_test(path))
    known |= {path: replace(known.get(path, NOTHING), beside_getters=True) for path in own}
    reading = [path for path, text in near.items() if _EMBEDDINGS.search(text) and not is_a_test(path)]
    known |= {path: replace(known.get(path, NOTHING), reads_embeddings=True) for path in reading}
    copying = [path for path, text in near.items() if _COPIES.search(text) and not is_a_test(path)]
    known |= {path: replace(known.get(path, NOTHING), copies_modules=True) for path in copying}
    spectral = (path for path in _with_spectral_norms(texts, around) if path in near)
    known |= {path: replace(known.get(path, NOTHING), has_spectral_norms=True) for path in spectral}
    return known


def _with_spectral_norms(texts: Mapping[Path, str], around: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Return the files with layers of ``spectral_norm`` in a project that asks for bf16 or fp16 anywhere."""
    found = [
        path
        for path, text in texts.items()
        if _SPECTRAL in text and (not is_a_test(path) or _runs_a_framework(text))
    ]
    asked = itertools.chain(texts.values(), (text for _, text in settings_around(around)) if found else ())
    return found if found and any(_CASTS.search(COMMENT.sub("", text)) for text in asked) else []


def _of_lightning(lightning: LightningProject, links: Mapping[Path, Links]) -> dict[Path, Links]:
    """Return what the files are told of that Lightning's FSDP1 may train."""
    told = {
        path: replace(links.get(path, NOTHING), is_trained=True, has_units=lightning.has_units)
        for path in lightning.files
    }
    mixins, own = lightning.mixins, lightning.own_hooks
    return {
        path: replace(each, mixins=mixins.get(path, frozenset()), own_hooks=own.get(path, {}))
        for path, each in told.items()
    }


def _runs_a_framework(text: str) -> bool:
    """Tell whether a test gives a framework its own models."""
    return bool(prepares(text)) or "Trainer(" in text


def _with_options(texts: Mapping[Path, str]) -> list[Path]:
    """Return the files with an option by which Lightning's FSDP may be chosen, which another file reads."""
    if not using_lightning(texts) or any(map(_WRAPS.search, texts.values())):
        return []
    return [path for path, text in texts.items() if has_option(text)]


def framework_models(project: Project, around: Iterable[str | os.PathLike[str]]) -> FrameworkModels:
    """Return the models of the files that ask for FSDP1 themselves, or are given what another one makes.

    ``around``: where configs and shell scripts are, which may ask Hugging Face's Trainer for it.
    """
    texts = project.texts
    users: dict[str, set[Path]] = {}
    classes = with_makers(project, heirs(project))
    objects = made_objects(project, classes)
    given = {
        name: {
            path for path, text in texts.items() if takes(text) or KINDS[name].kind in objects.get(path, ())
        }
        for name, (_, takes, _, _) in _WORDS.items()
    }
    told = {name: set(_given(texts, name, given[name])) for name in _WORDS}
    for name, pattern in (("accelerate", ASKS_ACCELERATE), ("fabric", ASKS_FABRIC)):
        told[name] |= _asked_by_configs(texts, name, around, pattern, given[name])
    told["fabric"] |= _asked_by_options(texts, around, given["fabric"])
    for name, (_, _, _, is_new) in _WORDS.items():
        own = {
            path
            for path, text in texts.items()
            if any(word in text for word in _TELLING[name])
            and (_OWN[name].search(text) or (name == "accelerate" and _hands_to_fsdp1(text)))
            and path in given[name]
            and not is_new.search(text)
        }
        found = own | told[name]
        users |= {name: found} if found else {}
    lightnings = homes_of_modules(project) | run_by_lightning(project, around)
    lightning_files = frozenset(lightnings | trained_elsewhere(texts, of_others(classes)))
    has_units = bool(lightning_files) and wraps(texts, around)
    lightning = LightningProject(project, lightning_files, has_units=has_units)
    lightning = replace(lightning, files=lightning_files.union(lightning.mixins))
    running = _running_trainers(project, around)
    for path, names in own_trainers(project).items() if running else ():
        classes[path] = {**dict.fromkeys(names, frozenset()), **classes.get(path, {})}
    return FrameworkModels(
        users,
        with_heirs(project, running, classes),
        lightning,
        ComposerProject(project, frozenset(run_by_composer(project, around))),
        objects,
        classes,
        told,
    )


def _hands_to_fsdp1(text: str) -> bool:
    """Tell whether a text asks Accelerate for FSDP, and gives FSDP1's functions what that has prepared."""
    return _ASKED in text and "is_fsdp2" not in text and _GIVEN_TO_FSDP1.search(text) is not None


def _asked_by_options(
    texts: Mapping[Path, str], around: Iterable[str | os.PathLike[str]], given: Collection[Path]
) -> set[Path]:
    """Return the files that give Fabric models, where it is handed a strategy that may be FSDP1's."""
    is_new = _WORDS["fabric"][3]
    handed = any(_HANDED.search(text) for text in texts.values() if "Fabric" in text)
    if not given or not handed or any(map(is_new.search, texts.values())):
        return set()
    is_asked = any(map(has_option, texts.values())) or any(
        _WORD.search(text) for text in texts.values() if "Fabric" in text
    )
    return set(given) if is_asked or asked_around(around, ASKS_BY_WORD) else set()


def _asked_by_configs(
    texts: Mapping[Path, str],
    name: str,
    around: Iterable[str | os.PathLike[str]],
    pattern: re.Pattern[str],
    given: Collection[Path],
) -> set[Path]:
    """Return the files that give a framework models, in a project whose configs or launches ask for FSDP1."""
    found = {path for path in given if not _WORDS[name][3].search(texts[path])}
    flags = [text for text in texts.values() if _FLAG.search(text) and _LAUNCHES in text]
    flags += [text for text in texts.values() if SWITCH in text]
    is_asked = name == "accelerate" and any(asks(text, pattern) for text in flags)
    is_asked = is_asked or (name == "accelerate" and any(map(_asks_launcher, texts.values())))
    is_asked = is_asked or (name == "accelerate" and bool(found) and _name_its_files(texts, around))
    if is_asked or not found or not asked_around(around, pattern):
        return found if is_asked else set()
    return found - launched_otherwise(found, texts, around) if name == "accelerate" else found


def _name_its_files(texts: Mapping[Path, str], around: Iterable[str | os.PathLike[str]]) -> bool:
    """Tell whether a source names what Accelerate's FSDP saves, where nothing asks for FSDP2.

    Its config may be the machine's: ``os.remove(folder / "pytorch_model_fsdp.bin")``.
    """
    named = [text for path, text in texts.items() if _ITS_FILE in text and not is_a_test(path)]
    is_named = any(_NAMES_ITS_FILE.search(text) for text in named)
    return is_named and not any("fsdp_version" in text for text in named) and not fsdp2_around(around)


def _running_trainers(project: Project, around: Iterable[str | os.PathLike[str]]) -> set[Path]:
    """Return the files that use Hugging Face's Trainer, in a project that asks it for FSDP1."""
    texts = project.texts
    named = {path: text for path, text in texts.items() if any(word in text for word in _OF_TRAINERS)}
    found = {path for path, text in named.items() if _USES_TRAINER.search(text) and not _is_unsloths(text)}
    if not found or not any(_IMPORTS_TRAINER.search(text) for text in named.values()):
        return set()
    own = (text for text in texts.values() if "TrainingArguments" in text or "trl" in text)
    is_asked = any(asks(text, ASKS_HF) for text in own) or any(map(_asks_otherwise, texts.values()))
    is_asked = is_asked or _name_its_files(texts, around) or any(map(_prepares_by_switch, texts.values()))
    if not is_asked and asked_around(around, ASKS_HF):
        return found - launched_otherwise(found, texts, around)
    # A question holds for FSDP2 too: where that alone is run, it tells nothing.
    is_question = not is_asked and any(
        _asks_any(text) or (path in found and (_asks_itself(text) or _asks_arguments(text)))
        for path, text in texts.items()
    )
    if not is_asked and is_question and not fsdp2_around(around):
        return found - RunsWithoutFSDP(project, around, imports_in(project)).alone(found)
    return found if is_asked else set()


def _prepares_by_switch(text: str) -> bool:
    """Tell whether an Accelerator of a source prepares a model where FSDP is on, whatever launches it so.

    The Trainer's Accelerator is of the same launch.
    """
    return "Accelerator(" in text and "fsdp" in text and _PREPARES_BY_SWITCH.search(text) is not None


def _is_unsloths(text: str) -> bool:
    """Tell whether unsloth makes all models of a file, which trains on one card, and knows no FSDP."""
    if "unsloth" not in text or _UNSLOTH.search(text) is None or asks(text, ASKS_HF):
        return False
    makers, names = set(_MAKERS.findall(text)), _SET.findall(text)
    return bool(makers) and all(map(_UNSLOTHS.fullmatch, makers)) and all(map(_FROM_UNSLOTH.match, names))


def _asks_otherwise(text: str) -> bool:
    """Tell whether a source has the words for FSDP of the Trainer in a dict, or launches with it."""
    is_said = any(word in text for word in _WORDS_OF_HF) and asks(text, _SAYS_HF)
    is_launched = _LAUNCHES in text and _FLAG.search(text) is not None
    is_said = is_said or _asks_launcher(text)
    return is_said or ((SWITCH in text or is_launched) and asks(text, ASKS_ACCELERATE))


def _asks_launcher(text: str) -> bool:
    """Tell whether a source calls Accelerate's launcher with FSDP: ``launch_command(Namespace(..))``."""
    return LAUNCHES_IT in text and _LAUNCHES in text and asks(text, ASKS_LAUNCHER)


def _asks_any(text: str) -> bool:
    """Tell whether a source asks a Trainer whether it is sharded: ``trainer.is_fsdp_enabled``."""
    return "is_fsdp_enabled" in text and asks(text, _ASKS_A_TRAINER)


def _asks_itself(text: str) -> bool:
    """Tell whether a class of the Trainer asks whether it is sharded: ``self.is_fsdp_enabled``."""
    return "self.is_fsdp_enabled" in text and asks(text, _ASKS_ITSELF)


def _asks_arguments(text: str) -> bool:
    """Tell whether a source asks the Trainer's arguments for FSDP, and does not refuse it."""
    return ".fsdp" in text and "TrainingArguments" in text and asks(text, _ASKS_ARGUMENTS)


def _given(texts: Mapping[Path, str], framework: str, given: Collection[Path]) -> Iterator[Path]:
    """Yield the files that are given what another one makes: one of their own says by itself what it does."""
    wants, _, makes, is_new = _WORDS[framework]
    telling = (each for each in texts.items() if any(word in each[1] for word in _TELLING[framework]))
    asking = {path for path, text in telling if wants.search(text)}
    if not asking or any(map(is_new.search, texts.values())):
        return
    if not any(makes.search(text) for text in texts.values()):
        return
    for path, text in texts.items():
        if path not in asking and path in given and not makes.search(text):
            yield path
