"""What is left to do for a repository, in order, with the commands to type."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from fsdp_migrate.finding_codes import FINDING_CODES
from fsdp_migrate.findings import counted, listed
from fsdp_migrate.left_comments import what_they_stop
from fsdp_migrate.source.apart_steps import steps_for_apart
from fsdp_migrate.source.argument_files import steps_for_arguments
from fsdp_migrate.source.copied_trainers import left_to_copies
from fsdp_migrate.source.ended_groups import TO_WRITE
from fsdp_migrate.source.next_step import Step
from fsdp_migrate.source.own_model_types import of_transformers
from fsdp_migrate.source.proof_steps import folder_of, step_to_compare, step_to_keep, steps_for_checkpoints
from fsdp_migrate.source.still_fsdp1 import PREPARING, is_left_wrap, still_fsdp1
from fsdp_migrate.source.uses import of_shared_comments


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fsdp_migrate.source.launchers import LaunchFound
    from fsdp_migrate.source.pins import PinFound
    from fsdp_migrate.source.prepared_apart import PreparedApart
    from fsdp_migrate.source.surroundings import CheckpointFound, ConfigFound
    from fsdp_migrate.source.uses import ScanReport, Use


_PLACES = 3
# Settings stand in another file.
_STANDS_ELSEWHERE = "FM356"
_FACTORY = "PKG.MOD:FACTORY"
_MOST_CONFIGS = 3
_MOST_PINS = 8
_DOCTOR = "See which known faults of torch and the frameworks hit you. This and the next two change nothing."
_PLAN = "See how the model will be sharded, and whether it fits; no GPU is needed."
_PARITY = (
    "Train a few steps of the model, or of a smaller one of the same classes, under FSDP1 and under FSDP2, "
    "and compare every tensor."
)
_OWN_MODEL = (
    f"{_FACTORY} names the function that makes your model, and takes no arguments; for a model of "
    "transformers write transformers:FOLDER, the folder with its config.json."
)
_FOUND_MODEL = (
    "The model is that of the config.json that was found, with random weights; PKG.MOD:FACTORY in its place "
    "names a function that makes yours."
)
_OWN_CONFIG = (
    "fsdp.yaml is a file that you write, with all arguments that your sources give FSDP1, as "
    "`sharding_strategy: FULL_SHARD`, `auto_wrap_policy: {transformer_layer_cls: [Block]}`, "
    "`mixed_precision: {param_dtype: bfloat16}`: what is left out has FSDP1's default, whatever the sources "
    "say."
)
_BY_HAND = (
    "Sources shard by themselves ({}), and not by {}. For a run of theirs, fsdp.yaml is a file that you "
    "write, with all arguments that FSDP1 has there, as `sharding_strategy: FULL_SHARD`, "
    "`auto_wrap_policy: {{transformer_layer_cls: [Block]}}`, `mixed_precision: {{param_dtype: bfloat16}}`."
)
_BEFORE = (
    "Do it before the config is converted: FSDP1 runs by it. Afterwards the copy is right, which is kept as "
    "NAME.fsdp1."
)
_BY_VERSION = (
    "Do it before the config is converted: `parity` runs FSDP1 by it. Afterwards the copy is right, which is "
    "kept as NAME.fsdp1. HF Trainer itself runs FSDP1 by {} before transformers 5.10 alone: there is no "
    "`version`, and from 5.10 on it runs FSDP2. For an FSDP1 run of your script to compare with, write "
    '`"version": 1` into a copy.'
)
_WANTED = (
    "Then write {} into the converted config that is named as `fsdp_config` there ({}): `fsdp` asks for it, "
    "and transformers 5.10 and later read it from that file, whatever `fsdp` says."
)
_COPY = "The config is FSDP2's already, so FSDP1 runs by the copy that was kept."
_IN_CELLS = "the launch lines, and the configs in cells of notebooks"
_LOOK = "Read what each says that changes, and do what it says is to be written for that."
_WRITTEN = "the flags and here-documents of the scripts"
_LINES_BY_HAND = (
    "Change by hand the launch lines whose flags stand within quotes, or in a variable that others use; this "
    "shows what each command becomes"
)
_SHOWN_BY_HAND = (
    "Change by hand the launch lines that pages show, also where you start such a run; this shows what each "
    "command becomes"
)
_ELSEWHERE = (
    "Read what this says of launch lines whose settings stand in other files or in the environment, such as "
    "what becomes of the mixed precision that they ask for. The lines stay as they are unless it says so"
)
_COMPOSER, _COMPOSERS = "composer", "FM328"
_ASKING = frozenset({*PREPARING, "FM427", "FM428"})
"""What shards in a source, and settings that it gives a framework, in which `rewrite` writes FSDP2's."""
_CALLED_BACK = (
    "Leave Composer's {} as it is if you add the callback (FM328), which reads FSDP1's settings and stops at "
    "converted ones. Only if you take Composer's own FSDP2 instead, with FSDP_VERSION=2 in the environment, "
    "convert it; a backup is kept."
)
_NOT_HERE = (
    "Convert where it is, with `fsdp-migrate config`, each config that a launch line names and that is not "
    "in these folders: {}. By its name it asks Accelerate for FSDP, and what is said of such sources takes "
    "it for FSDP1"
)
_UNKNOWN = (
    "Look into each config that a launch line names and that is not in these folders: {}. Something here "
    "speaks of FSDP under Accelerate. Where one has `distributed_type: FSDP`, convert it where it is, with "
    "`fsdp-migrate config`"
)
_BY_OTHERS = (
    "Start what runs these sources with FSDP by a config of FSDP2 from then on: `fsdp_version: 2` for "
    "Accelerate, `version: 2` in HF Trainer's `fsdp_config`. Nothing here says which it is, and the lines "
    "that are turned ({}) ask for FSDP2's models: with FSDP1's a check is false and a context does nothing, "
    "without a word"
)
_IMPORTS = "FM329"
_SETTINGS = frozenset({"FM319", "FM320", "FM327", "FM328", "FM427", "FM428"})
"""What is a framework's setting for FSDP in a source."""
# What a framework's sources are given of `fsdp_migrate.runtime`; the framework shards.
_OURS = re.compile(
    r"(?<![\w.])(?:clip_grad_norm_|(?:full|sharded)_(?:\w+_)?state_dict|grad_scaler|load_model_state_dict|no_sync"
    r"|optim_state_dict_to_load|summon_full_params)\("
)
_INSTALL = "Install `fsdp-migrate` wherever the project runs, which has no file of requirements to add it to"
_SHOWN_AGAIN = (
    "See what else differs under the config that was converted, and what to write for it. The conversion has "
    "said so too."
)
_NOTEBOOKS = "Change the notebooks by hand, which `fsdp-migrate rewrite` leaves alone, as is said below"
_SETTLE = "Settle by hand what got a comment, and delete it"
_UNCLEAR = {
    "FM450": "Look at the places under `To be looked at`, to which a model comes that could not be followed",
    "FM454": "Look at the places under `To be looked at` where what is sharded goes into code that is unread",
}


class Done(TypedDict):
    """What sources say of the work: what :func:`next_steps` and :func:`are_turned` are told of it."""

    is_prepared: bool
    is_called_back: bool


class Scripts(TypedDict):
    """What is seen of the scripts of a project, as :func:`next_steps` is told of them."""

    scripts: list[str]
    ends: list[str]


def next_steps(
    paths: Sequence[str],
    report: ScanReport,
    configs: Sequence[ConfigFound],
    checkpoints: Sequence[CheckpointFound],
    launches: Sequence[LaunchFound] = (),
    pins: Sequence[PinFound] = (),
    models: Sequence[str] = (),
    *,
    is_prepared: bool = False,
    is_checked: bool = True,
    is_called_back: bool = False,
    apart: PreparedApart | None = None,
    lacking: Sequence[str] | None = None,
    elsewhere: Sequence[str] = (),
    unknown: Sequence[str] = (),
    scripts: Sequence[str] = (),
    ends: Sequence[str] = (),
) -> list[Step]:
    """Return what to do, in order of work: what changes nothing first, then sources, configs, checkpoints.

    Args:
        paths: What was scanned, as it was given.
        report: What was found in sources.
        configs: The configs that were found.
        checkpoints: The checkpoints that were found.
        launches: The launch lines that were found.
        pins: The requirements that keep out what FSDP2 needs.
        models: The folders of models of transformers that were found.
        is_prepared: Whether sources call ``prepare_fully_shard``, as rewritten ones do.
        is_checked: Whether something in the project stops a run at the comments that are left.
        is_called_back: Whether Composer has the callback, by which it takes FSDP1's configs as they are.
        lacking: The files of requirements of a project that does not name fsdp-migrate; None where one does.
        apart: The places where Accelerate gets a model without its optimizer.
        elsewhere: The configs that launch lines name and that are not here.
        unknown: Those whose names do not say whether they ask for FSDP.
        scripts: The scripts that train, as far as it is seen.
        ends: The places at which scripts end a group that may be gloo's by torch's own call.
    """
    where = shlex.join(paths)
    uses = [use for use in report.uses if use.cell is None]
    left = [use for use in uses if use.is_for_people]
    rewrites = [use for use in uses if use.action == "rewritten"]
    steps = _steps_for_pins(pins)
    converted = _to_convert(configs, reads=bool(rewrites) or is_prepared, is_called_back=is_called_back)
    states = {*(each.state for each in converted), *(each.state for each in launches)}
    is_to_turn, folder = bool(rewrites) or "changes" in states, folder_of(paths)
    is_turned = is_prepared or any(each.fsdp1_copy for each in configs)
    if is_to_turn or left:
        known = of_transformers(models, paths)
        steps += _steps_for_proof(where, configs, launches, known, _sharded_by_hand(rewrites))
    is_kept = (is_to_turn or bool(left)) and not is_turned
    steps += [step_to_keep(folder)] if is_kept else []
    if rewrites or not all(use.is_marked for use in left):
        steps.append(_step_to_rewrite(where, _amount(rewrites, "use") if rewrites else "comments alone"))
    is_to_be = any(use.code in PREPARING for use in rewrites)
    if not (elsewhere or unknown):
        steps += _steps_for_sharding_elsewhere(report, configs, launches, is_prepared=is_prepared)
    has_run = any(each.is_fsdp2s for each in checkpoints)  # and has shown what it does
    if is_to_be or is_prepared or any(_OURS.search(use.becomes) for use in rewrites):
        steps += _steps_for_ours(lacking, ends, has_run=has_run and not is_to_be)
    if left:
        stops = what_they_stop((use.code for use in left), is_checked=is_checked or is_to_be)
        text = f"{_SETTLE}: {_amount(left, 'place')}{of_shared_comments(left)}. {stops}"
        steps.append(Step(text, (f"grep -rn '# fsdp-migrate: FM' {where}",)))
    steps += _steps_to_look(report)
    # What sources that shard, or ask a framework to, make of a switch of their own stays as it is.
    asks = is_prepared or any(use.code in _ASKING for use in rewrites)
    own = [each for each in converted if not (asks and each.is_switch)]
    steps += _steps_for_configs(own, launches, asks_back=any(use.code == _COMPOSERS for use in uses))
    steps += [*_for_launches(launches, configs, rewrites), *steps_for_arguments(paths, configs, launches)]
    said = ((_NOT_HERE, elsewhere), (_UNKNOWN, unknown))
    steps += [Step(f"{text.format(listed(names, _PLACES))}.", ()) for text, names in said if names]
    steps += steps_for_apart(apart)
    steps += [] if has_run else _steps_for_converted(configs)
    if is_to_turn or left or (is_turned and not has_run):
        steps.append(step_to_compare(folder, scripts, is_kept=is_kept))
    old = [each for each in checkpoints if not _is_of_model(each, models)]
    is_run = bool(report.num_files or configs or launches)
    return steps + steps_for_checkpoints(old, models, folder if is_run else None)


def _steps_to_look(report: ScanReport) -> Iterator[Step]:
    """Yield what no command does: places that are not clear, and what cells of notebooks hold."""
    unclear = [use for use in report.uses if use.cell is None and use.action == "unclear"]
    for code, text in _UNCLEAR.items():
        if some := [use for use in unclear if (use.code == "FM454") is (code == "FM454")]:
            yield Step(f"{text}: {_amount(some, 'place')}. See {code}.", ())
    in_cells = [use for use in report.uses if use.cell is not None]
    if in_cells := [use for use in in_cells if use.is_for_people or use.action == "unclear"]:
        yield Step(f"{_NOTEBOOKS}: {_amount(in_cells, 'place')}.", ())


def _step_to_rewrite(where: str, turned: str) -> Step:
    commands = (f"fsdp-migrate rewrite {where}", f"fsdp-migrate rewrite {where} --write")
    return Step(f"Look at the changes to the sources, and write them: {turned}.", commands)


def are_turned(
    report: ScanReport,
    configs: Sequence[ConfigFound],
    launches: Sequence[LaunchFound] = (),
    *,
    is_prepared: bool = False,
    is_called_back: bool = False,
) -> bool:
    """Tell whether ``rewrite`` and ``config`` have nothing left to do, and not because all wraps are left."""
    states = {
        *(each.state for each in _to_convert(configs, reads=is_prepared, is_called_back=is_called_back)),
        *(each.state for each in launches),
    }
    if "changes" in states or any(use.action == "rewritten" and use.cell is None for use in report.uses):
        return False
    # Where each wrap is left, a run trains with FSDP1 as before, and so it saves.
    return is_prepared or not still_fsdp1(report.uses)


def _to_convert(configs: Sequence[ConfigFound], *, reads: bool, is_called_back: bool) -> list[ConfigFound]:
    """Return the configs that neither rewritten sources nor Composer's callback read as they are."""
    left = (each for each in configs if not (reads and each.holds_arguments))
    return [each for each in left if not (is_called_back and each.framework == _COMPOSER)]


def not_migrated(
    report: ScanReport, configs: Sequence[ConfigFound], launches: Sequence[LaunchFound] = ()
) -> list[str]:
    """Say what cannot be migrated: each kind of use with its places, configs and launch lines."""
    refused: dict[str, list[str]] = {}
    for use in report.uses:
        if use.action == "commented" and FINDING_CODES[use.code].fidelity == "refused":
            refused.setdefault(use.code, []).append(use.place)
    said = [
        f"{code} {FINDING_CODES[code].summary} ({listed(places, _PLACES)})"
        for code, places in sorted(refused.items())
    ]
    said += [f"{each.path}: {each.message}" for each in configs if each.state == "refused"]
    return said + [f"{each.place}: {each.message}" for each in launches if each.state == "refused"]


def _steps_for_sharding_elsewhere(
    report: ScanReport,
    configs: Sequence[ConfigFound],
    launches: Sequence[LaunchFound],
    *,
    is_prepared: bool,
) -> list[Step]:
    """Return what is to be said of lines of a Trainer's class that are turned, where nothing here shards."""
    is_asked = any(each.state != "unused" for each in configs)
    is_asked = is_asked or any(each.state != "unused" for each in launches)
    shards = PREPARING | _SETTINGS
    if is_asked or is_prepared or report.frameworks.isdisjoint({"accelerate", "transformers"}):
        return []
    if any(use.code in shards or is_left_wrap(use.rule, use) for use in report.uses):
        return []
    turned = [use.place for use in report.uses if use.action == "rewritten" and use.code != _IMPORTS]
    return [Step(f"{_BY_OTHERS.format(listed(turned, _PLACES))}.", ())] if turned else []


def _amount(uses: Sequence[Use], word: str) -> str:
    return f"{counted(len(uses), word)} in {counted(len({use.path for use in uses}), 'file')}"


def _steps_for_pins(pins: Sequence[PinFound]) -> list[Step]:
    if not pins:
        return []
    every = (f"{pin.path}:{pin.line} {pin.requirement} (from {pin.needed} on)" for pin in pins)
    text = listed(every, _MOST_PINS, between="; ")
    return [Step(f"Raise the requirements that keep out what FSDP2 needs: {text}.", ())]


def _steps_for_ours(lacking: Sequence[str] | None, ends: Sequence[str], *, has_run: bool) -> Iterator[Step]:
    """Yield what has this package installed, and what of it goes where scripts end their process group."""
    if lacking or (lacking is not None and not has_run):
        added = f"Add `fsdp-migrate` to {listed(lacking, _PLACES)}" if lacking else _INSTALL
        yield Step(f"{added}: the rewritten sources import it.", ())
    if ends and not has_run:
        yield Step(TO_WRITE.format(listed(ends, _PLACES)), ())


def _steps_for_proof(
    where: str,
    configs: Sequence[ConfigFound],
    launches: Sequence[LaunchFound],
    models: Sequence[str],
    by_hand: Sequence[str],
) -> list[Step]:
    """Return what proves beforehand that the run stays the same, with what is there of configs and models."""
    changing = [each for each in configs if each.state == "changes"]
    given = [each.path for each in changing]
    launches = [each for each in launches if not each.is_shown]
    given += dict.fromkeys(each.path for each in launches if each.state == "changes")
    copies = [each.fsdp1_copy for each in configs if each.fsdp1_copy and not given]
    options = [f" --config {shlex.quote(path)}" for path in (given or copies)[:_MOST_CONFIGS]]
    model = shlex.quote(f"transformers:{models[0]}") if models else _FACTORY
    whose = _FOUND_MODEL if models else _OWN_MODEL
    is_left = bool(given) and len(given) == sum(each.holds_arguments for each in changing)
    when = "" if is_left else _before([*changing, *launches]) if given else _COPY if copies else ""
    if not options:
        whose, options = f"{whose} {_OWN_CONFIG}", [" --config fsdp.yaml"]
    # With the model it also names what a framework's own FSDP2 stops at.
    seen_with = f" --model {model}{options[0]}" if given or copies else ""
    # A framework's config is of the runs that it starts, and may be of another program than the sources'.
    has_both = bool(by_hand and seen_with) and not any(each.holds_arguments for each in changing)
    hand = _BY_HAND.format(listed(by_hand, _PLACES), listed(given or copies, _PLACES)) if has_both else ""
    options += [" --config fsdp.yaml"] if has_both else []
    sizes = "--world-size RANKS --batch-size ROWS --seq-length TOKENS --memory 80GB"
    plan = f"fsdp-migrate plan --model {model}{{}} {sizes}"
    return [
        Step(f"{_DOCTOR} {whose}" if seen_with else _DOCTOR, (f"fsdp-migrate doctor {where}{seen_with}",)),
        Step(
            f"{_PLAN} {hand if seen_with else whose}".strip(),
            tuple(plan.format(option) for option in options),
        ),
        Step(
            f"{_PARITY} {when}".strip(),
            tuple(f"fsdp-migrate parity --model {model}{option}" for option in options),
        ),
    ]


def _sharded_by_hand(rewrites: Sequence[Use]) -> list[str]:
    """Return the places at which sources make FSDP1 models themselves."""
    return [f"{use.path}:{use.line}" for use in rewrites if use.code in PREPARING]


def _before(found: Sequence[ConfigFound | LaunchFound]) -> str:
    """Say when to compare; what a config without a version means, transformers decides."""
    lacking = dict.fromkeys(each.path for each in found if each.lacks_version)
    return _BY_VERSION.format(listed(lacking, _PLACES)) if lacking else _BEFORE


def _for_launches(
    every: Sequence[LaunchFound], configs: Sequence[ConfigFound], rewrites: Sequence[Use]
) -> list[Step]:
    steps, launches = left_to_copies((use.path for use in rewrites if use.code in PREPARING), every)
    if changing := [each for each in launches if each.state == "changes" and not each.by_hand]:
        places = ", ".join(each.place for each in changing)
        scripts = dict.fromkeys(each.path for each in changing)
        commands = tuple(f"fsdp-migrate config {shlex.quote(path)} --write" for path in scripts)
        writes = any("<<" in each.command for each in changing)
        in_cells = any(each.cell is not None for each in changing)
        what = _WRITTEN if writes else _IN_CELLS if in_cells else "the flags of the launch lines"
        text = f"Convert {what} ({places}); a backup of each {'file' if in_cells else 'script'} is kept."
        steps.append(Step(text, commands))
    if shown := [each for each in launches if each.by_hand and each.is_shown]:
        places = ", ".join(each.place for each in shown)
        steps.append(Step(f"{_SHOWN_BY_HAND} ({places}).", tuple(dict.fromkeys(map(_asking_why, shown)))))
    if by_hand := [each for each in launches if each.by_hand and not each.is_shown]:
        places = ", ".join(each.place for each in by_hand)
        scripts = dict.fromkeys(each.path for each in by_hand)
        commands = tuple(f"fsdp-migrate config {shlex.quote(path)}" for path in scripts)
        steps.append(Step(f"{_LINES_BY_HAND} ({places}).", commands))
    found = {Path(each.path).name for each in configs}
    if elsewhere := [each for each in launches if each.state == "elsewhere" and _says_more(each, found)]:
        places = ", ".join(each.place for each in elsewhere)
        scripts = dict.fromkeys(each.path for each in elsewhere)
        commands = tuple(f"fsdp-migrate config {shlex.quote(path)}" for path in scripts)
        steps.append(Step(f"{_ELSEWHERE} ({places}).", commands))
    if refused := [each for each in launches if each.state == "refused"]:
        places = ", ".join(each.place for each in refused)
        commands = tuple(dict.fromkeys(map(_asking_why, refused)))
        steps.append(Step(f"See why these launch lines cannot be converted ({places}).", commands))
    return steps


def _asking_why(launch: LaunchFound) -> str:
    if launch.cell is not None:
        return f"fsdp-migrate config {shlex.quote(launch.path)}"
    return f"fsdp-migrate config --command {shlex.quote(launch.command)}"


def _says_more(launch: LaunchFound, configs: set[str]) -> bool:
    """Tell whether more is to be said of it than that its settings stand in a config that was found."""
    names = {Path(word).name for word in launch.command.split()}
    # What cells set in the environment is named with all that is to be said.
    return bool(launch.codes - {_STANDS_ELSEWHERE}) or (
        _STANDS_ELSEWHERE in launch.codes and names.isdisjoint(configs)
    )


def _steps_for_configs(
    configs: Sequence[ConfigFound], launches: Sequence[LaunchFound], *, asks_back: bool
) -> list[Step]:
    """Return what to do with configs; ``asks_back``: a comment asks for Composer's callback or its FSDP2."""
    steps = []
    changing = [each for each in configs if each.state == "changes"]
    either = [each for each in changing if asks_back and each.framework == _COMPOSER]
    if surely := [each for each in changing if each not in either]:
        text = f"Convert {counted(len(surely), 'config')}; a backup of each is kept. {_LOOK}"
        steps.append(Step(text, tuple(map(_converting, surely))))
        steps += _steps_for_wanted(configs, launches)
    if either:
        text = _CALLED_BACK.format(listed([each.path for each in either], _PLACES))
        steps.append(Step(text, tuple(map(_converting, either))))
    odd = tuple(
        f"fsdp-migrate config {shlex.quote(each.path)}"
        for each in configs
        if each.needs_code or (each.state in {"refused", "unclear", "broken"} and not each.is_own)
    )
    if odd:
        steps.append(Step("See why these configs cannot be converted as they are.", odd))
    return steps


def _steps_for_converted(configs: Sequence[ConfigFound]) -> list[Step]:
    """Return the step that shows again what a conversion changed, of configs with what was kept of them."""
    kept = [each.fsdp1_copy for each in configs if each.fsdp1_copy and each.state == "fsdp2"]
    return (
        [Step(_SHOWN_AGAIN, tuple(f"fsdp-migrate config {shlex.quote(path)}" for path in kept))]
        if kept
        else []
    )


def _converting(config: ConfigFound) -> str:
    return f"fsdp-migrate config {shlex.quote(config.path)}{' --from hf' if config.is_named else ''} --write"


def _steps_for_wanted(configs: Sequence[ConfigFound], launches: Sequence[LaunchFound]) -> list[Step]:
    """Return what those ask for who name a config of HF Trainer's, and it does not say itself."""
    asked: dict[str, list[str]] = {}
    for launch in launches:
        if launch.wanted:
            asked.setdefault(launch.wanted, []).append(launch.place)
    for config in configs:
        if config.wanted:
            asked.setdefault(config.wanted, []).append(config.path)
    return [Step(_WANTED.format(wanted, listed(places, _PLACES)), ()) for wanted, places in asked.items()]


def _is_of_model(checkpoint: CheckpointFound, models: Sequence[str]) -> bool:
    """Tell whether it is weights alone in the folder of a model, which ``from_pretrained`` reads."""
    places = {checkpoint.path, str(Path(checkpoint.path).parent)}
    return checkpoint.is_full and not places.isdisjoint(models)
