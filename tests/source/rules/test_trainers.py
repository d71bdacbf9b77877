"""FSDP1 as Composer's Trainer is told of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.samples import assert_framework_commented, assert_untouched, codes, turned, uses


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


FRAMEWORKS = [
    ("from composer import Trainer\nt = Trainer(model, fsdp_config=c)\n", "FM328"),
    ("import composer\nt = composer.Trainer(model, parallelism_config={'fsdp': c})\n", "FM328"),
    ("import composer\nkw['parallelism_config'] = {'fsdp': c}\n", "FM328"),
    ("import composer\nkw = {'fsdp_config': c}\n", "FM328"),
    ("import composer\nkw = dict(fsdp_config=c)\n", "FM328"),
]


@pytest.mark.parametrize(("source", "code"), FRAMEWORKS)
def test_other_frameworks_get_a_comment(source: str, code: str) -> None:
    assert_framework_commented(source, code)


NO_FRAMEWORKS = [
    "from ours import Trainer\nt = Trainer(model, fsdp_config=c)\n",
    "from composer import Trainer\nt = Trainer(model, fsdp_config=None)\n",
]


@pytest.mark.parametrize("source", NO_FRAMEWORKS)
def test_other_frameworks_without_fsdp1_are_left_alone(source: str) -> None:
    assert_untouched(source)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("fsdp_config=cfg.get('fsdp', None)", """parallelism_config={"fsdp": cfg.get('fsdp', None)}"""),
        ("parallelism_config={'fsdp': c}", ""),
    ],
)
def test_an_argument_that_the_callbacks_composer_does_not_have(given: str, said: str) -> None:
    [use] = uses(f"from composer import Trainer\nt = Trainer(model, {given})\n", "")
    assert ("has no argument `fsdp_config`" in use.becomes) is bool(said)
    assert said in use.becomes


@pytest.mark.parametrize(
    "line",
    [
        "logged_cfg.update({'fsdp_config': c})",
        "logged_cfg.setdefault('all', {'fsdp_config': c})",
        "logged['fsdp_config'] = c",
        "self.logged['fsdp_config'] = c",
        "logged = {'fsdp_config': c}",
        "logged = {'a': dict(fsdp_config=c)}",
        "log_config({'fsdp_config': c})",
        "logger.info({'fsdp_config': c})",
        "wandb.config.update({'fsdp_config': c})",
    ],
)
def test_what_is_only_logged(line: str) -> None:
    code = f"import composer\n{line}\n"
    assert uses(code, "") == []
    for name, other in (("logged_cfg", "cfg"), ("logged", "given"), ("log_config", "fit")):
        code = code.replace(name, other)
    code = code.replace("logger.info", "run.fit").replace("wandb.config", "kwargs")
    assert [use.code for use in uses(code, "")] == ["FM328"]


@pytest.mark.parametrize(
    "line",
    [
        "logged = {'fsdp_config': c}\nfit(**logged)",
        "logged['fsdp_config'] = c\nfit(model, **logged)",
        "logged = kwargs = {'fsdp_config': c}",
        "catalog = {'fsdp_config': c}",
        "run(lambda: {'fsdp_config': c})",
        "class Logged:\n    def f(self):\n        return {'fsdp_config': c}",
    ],
)
def test_what_may_reach_a_trainer(line: str) -> None:
    assert [use.code for use in uses(f"import composer\n{line}\n", "")] == ["FM328"]


TRAINER = (
    "from transformers import Trainer\n\n\nclass Distilling({base}):\n    def {method}(self, model):\n"
    "        {target} = FSDP(model)\n        return self.model\n"
)


@pytest.mark.parametrize(
    ("base", "method", "target", "more", "is_said"),
    [
        ("Trainer", "_wrap_model", "self.model = model", "", True),
        ("Trainer", "_wrap_model", "model", "", True),
        ("Trainer", "setup", "self.model", "", True),
        ("Trainer", "setup", "self.teacher", "", False),
        ("Loop", "_wrap_model", "self.model", "", False),
        ("Trainer", "_wrap_model", "self.model", "    def save_model(self):\n        pass\n", False),
    ],
)
def test_a_trainer_that_shards_its_model_itself(
    base: str, method: str, target: str, more: str, *, is_said: bool
) -> None:
    body = TRAINER.format(base=base, method=method, target=target) + more
    assert (("FM327", "commented") in codes(body)) is is_said
    assert "prepare_fully_shard(model)" in turned(body)
    if method == "_wrap_model" and not more:
        given = body.replace(f"{target} = FSDP(model)\n        return self.model", "return FSDP(model)")
        assert (("FM327", "commented") in codes(given)) is is_said


CLIPS = (
    "from composer import Trainer\nfrom composer.algorithms import GradientClipping\n\n"
    "t = Trainer(model, algorithms=[GradientClipping({given})], {asks})\n"
)


@pytest.mark.parametrize(
    ("given", "asks", "is_said"),
    [
        ("clipping_type='value', clipping_threshold=1.0", "fsdp_config=c", True),
        ("'value', 1.0", "parallelism_config={'fsdp': c}", True),
        ("clipping_type='norm', clipping_threshold=1.0", "fsdp_config=c", False),
        ("clipping_type='value', clipping_threshold=1.0", "fsdp_config=None", False),
    ],
)
def test_composers_clipping_by_value(given: str, asks: str, *, is_said: bool) -> None:
    found = [use for use in uses(CLIPS.format(given=given, asks=asks), "") if "'value'" in use.becomes]
    assert [use.code for use in found] == (["FM328"] if is_said else [])


OF_TRAINERS = (
    "from transformers import Trainer, TrainingArguments\n\n\nclass Mine(Trainer):\n"
    "    def save(self):\n        {}\n\n\ndef save(trainer, args):\n    {}\n\n\n"
    "mine = Mine(model, TrainingArguments('o', fsdp='full_shard auto_wrap'))\nmine.train()\n"
)


@pytest.mark.parametrize(
    ("inside", "outside", "is_said"),
    [
        ("return self.fsdp is not None", "pass", True),
        ("pass", "return trainer.fsdp is not None", True),
        ("self.fsdp = None\n        return self.fsdp", "pass", False),
        ("return self.args.fsdp", "return args.fsdp", False),
        ("return self.is_fsdp_enabled", "return trainer.is_fsdp_enabled", False),
    ],
)
def test_todays_trainers_have_no_attribute_of_that_name(
    tmp_path: Path, inside: str, outside: str, *, is_said: bool
) -> None:
    (tmp_path / "t.py").write_text(OF_TRAINERS.format(inside, outside))
    found = [use for use in scan_paths([tmp_path]).uses if use.rule == "trainers"]
    assert any("is_fsdp_enabled`" in use.becomes and use.code == "FM358" for use in found) is is_said


@pytest.mark.parametrize(
    ("code", "is_said"),
    [
        ("def save(trainer: transformers.Trainer):\n    return trainer.fsdp is not None\n", True),
        ("def save(run: transformers.Trainer):\n    return run.fsdp is not None\n", True),
        ("def save(run: Settings):\n    return run.fsdp is not None\n", False),
        ("def save(run: transformers.Trainer):\n    return run.args.fsdp is not None\n", False),
    ],
)
def test_a_trainer_is_one_by_its_annotation_where_a_script_asks(
    tmp_path: Path, code: str, *, is_said: bool
) -> None:
    (tmp_path / "run.sh").write_text("torchrun main.py --fsdp 'full_shard auto_wrap' --output_dir o\n")
    (tmp_path / "main.py").write_text(MAIN.format("True"))
    (tmp_path / "saving.py").write_text(f"import transformers\n\n\n{code}")
    found = [use for use in scan_paths([tmp_path]).uses if use.rule == "trainers" and use.code == "FM358"]
    assert ["is_fsdp_enabled`" in use.becomes for use in found] == [True] * is_said


MAIN = (
    "import transformers\nfrom transformers import Trainer\n\nparser = transformers.HfArgumentParser"
    "((transformers.TrainingArguments,))\n(training_args,) = parser.parse_args_into_dataclasses()\n"
    "print({})\nTrainer(model, training_args).train()\n"
)


@pytest.mark.parametrize(
    ("read", "says"),
    [
        ("len(training_args.fsdp) > 0", "this raises"),
        ("'full_shard' in training_args.fsdp", "this raises"),
        ("[each for each in training_args.fsdp]", "this raises"),
        ("training_args.fsdp.split()", "this raises"),
        ("training_args.fsdp != ''", "this is another answer"),
        ("[] == training_args.fsdp", "this is another answer"),
        ("bool(training_args.fsdp)", ""),
        ("1 if training_args.fsdp else 0", ""),
        ("training_args.fsdp is None", ""),
        ("training_args.fsdp == other", ""),
        ("len(training_args.fsdp_config)", ""),
    ],
)
def test_the_arguments_hold_no_words_of_fsdp_any_more(tmp_path: Path, read: str, says: str) -> None:
    (tmp_path / "run.sh").write_text("torchrun main.py --fsdp 'full_shard auto_wrap' --output_dir o\n")
    (tmp_path / "main.py").write_text(MAIN.format(read))
    found = [use for use in scan_paths([tmp_path]).uses if use.rule == "trainers"]
    assert [(use.code, says in use.becomes) for use in found] == ([("FM358", True)] if says else [])


def test_a_flag_of_an_own_parser_stays_a_text(tmp_path: Path) -> None:
    made = "import argparse\nparser = argparse.ArgumentParser()\nargs = parser.parse_args()\n"
    own = f"from transformers import Trainer\n\n{made}print(len(args.fsdp))\nTrainer(m, given).train()\n"
    for code, count in ((own, 0), (MAIN.format("len(training_args.fsdp)"), 1)):
        (tmp_path / "run.sh").write_text("torchrun main.py --fsdp 'full_shard auto_wrap' --output_dir o\n")
        (tmp_path / "main.py").write_text(code)
        assert len([use for use in scan_paths([tmp_path]).uses if use.rule == "trainers"]) == count


GIVES = MAIN.replace("print({})", "model.get_model().build(None, {})")
TAKES = (
    "class Net:\n    def build(self, settings, fsdp=None):\n        {}\n        if {}:\n            pass\n"
)


@pytest.mark.parametrize(
    ("given", "above", "read", "says"),
    [
        ("fsdp=training_args.fsdp", "pass", "fsdp is not None and len(fsdp) > 0", "this raises"),
        ("training_args.fsdp", "pass", "'full_shard' in fsdp", "this raises"),
        ("training_args.fsdp", "pass", "fsdp != ''", "this is another answer"),
        ("training_args.fsdp", "pass", "fsdp", ""),
        ("fsdp=training_args.fsdp_config", "pass", "len(fsdp) > 0", ""),
        ("fsdp=settings.fsdp", "pass", "len(fsdp) > 0", ""),
        ("fsdp=bool(training_args.fsdp)", "pass", "len(fsdp) > 0", ""),
        ("settings=training_args.fsdp", "pass", "len(fsdp) > 0", ""),
        ("fsdp=training_args.fsdp", "fsdp = 'a'", "len(fsdp) > 0", ""),
    ],
)
@pytest.mark.parametrize("is_handed_on", [False, True])
def test_words_of_fsdp_that_are_given_on(
    tmp_path: Path, given: str, above: str, read: str, says: str, *, is_handed_on: bool
) -> None:
    """LLaVA and its many heirs give them to the function that makes the vision tower."""
    (tmp_path / "run.sh").write_text("torchrun main.py --fsdp 'full_shard auto_wrap' --output_dir o\n")
    (tmp_path / "main.py").write_text(GIVES.format("VALUE").replace("VALUE", given))
    takes = TAKES.format(above, read)
    if is_handed_on:
        between = TAKES.format("self.net.make(fsdp=fsdp)", "settings")
        (tmp_path / "between.py").write_text(between)
        takes = takes.replace("def build", "def make")
    (tmp_path / "arch.py").write_text(takes)
    found = [use for use in scan_paths([tmp_path]).uses if use.rule == "trainers"]
    assert [(use.code, says in use.becomes) for use in found] == ([("FM358", True)] if says else [])


@pytest.mark.parametrize(
    ("read", "is_said"),
    [
        ("words = training_args.fsdp\nprint(len(words))", True),
        ("words = args.other\nprint(len(words))", False),
    ],
)
def test_words_of_fsdp_by_another_name(tmp_path: Path, read: str, *, is_said: bool) -> None:
    (tmp_path / "run.sh").write_text("torchrun main.py --fsdp 'full_shard auto_wrap' --output_dir o\n")
    (tmp_path / "main.py").write_text(MAIN.replace("print({})", read))
    found = [use for use in scan_paths([tmp_path]).uses if use.rule == "trainers"]
    assert [use.code for use in found] == ["FM358"] * is_said


def test_words_of_fsdp_that_nothing_asks_the_trainer_for(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(GIVES.format("fsdp=training_args.fsdp"))
    (tmp_path / "arch.py").write_text(TAKES.format("pass", "len(fsdp) > 0"))
    assert [use for use in scan_paths([tmp_path]).uses if use.rule == "trainers"] == []
