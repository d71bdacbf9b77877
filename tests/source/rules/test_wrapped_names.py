"""Parts that FSDP1 put into names: harmless idioms told from what breaks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths, scan_source
from tests.source.samples import IMPORTS, MODEL, assert_commented, assert_kept, codes


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


@pytest.mark.parametrize(
    "code",
    [
        'm = getattr(m, "_fsdp_wrapped_module", m)\n',
        'if hasattr(m, "_fsdp_wrapped_module"):\n    m = m._fsdp_wrapped_module\n',
        'PREFIXES = ("module.", "_fsdp_wrapped_module.")\n',
        'for part in ["_orig_mod.", "_fsdp_wrapped_module."]:\n    n = n.replace(part, "")\n',
        'if "_fsdp_wrapped_module" in n:\n    n = n.replace("_fsdp_wrapped_module.", "")\n',
        'p.add_argument("--strip", help="takes _fsdp_wrapped_module out")\n',
        'raise ValueError("no _fsdp_wrapped_module here")\n',
        'print("_fsdp_wrapped_module is gone")\n',
    ],
)
def test_harmless_idioms_are_no_work(code: str) -> None:
    assert "commented" not in {use.action for use in scan_source(code)}


@pytest.mark.parametrize(
    "code",
    [
        'ok = "_fsdp_wrapped_module" in n\n',
        'x = state["_fsdp_wrapped_module.w"]\n',
        'n = "_fsdp_wrapped_module." + n\n',
    ],
)
def test_what_counts_on_the_part_is(code: str) -> None:
    assert [use.action for use in scan_source(code) if use.code == "FM316"] == ["commented"]


COMMENTED = [
    ("if '_fsdp_wrapped_module' in name:\n    pass\n", "FM316"),
    ("key = f'{name}._fsdp_wrapped_module.x'\n", "FM316"),
]


@pytest.mark.parametrize(("body", "code"), COMMENTED)
def test_what_is_left_to_people_gets_one_comment(body: str, code: str) -> None:
    assert_commented(body, code)


KEPT = [
    ("name = name.replace('_fsdp_wrapped_module.', '')\n", "FM316"),
]


@pytest.mark.parametrize(("body", "code"), KEPT)
def test_what_is_right_already_stays(body: str, code: str) -> None:
    assert_kept(body, code)


def test_a_part_that_is_asked_for_and_taken_out() -> None:
    part = '"model._fsdp_wrapped_module."'
    body = f'if key.startswith({part}):\n    key = key.replace({part}, "model.", 1)\n'
    assert {action for code, action in codes(body) if code == "FM316"} == {"kept"}
    body = f"if key.startswith({part}):\n    continue\n"
    assert ("FM316", "commented") in codes(f"for key in keys:\n    {body[:-13]}    {body[-13:]}")


@pytest.mark.parametrize(
    "test",
    [
        'type(m).__name__ == "FullyShardedDataParallel"',
        'm._get_name() == "FullyShardedDataParallel"',
        '"FullyShardedDataParallel" in str(type(m))',
        'kind in ("DistributedDataParallel", "FullyShardedDataParallel")',
        'm.__class__.__name__.startswith("FullyShardedDataParallel")',
    ],
)
def test_the_class_is_asked_for_by_its_name(test: str) -> None:
    code = f"def f(m):\n    kind = m.__class__.__name__\n    return {test}\n"
    assert [use.action for use in scan_source(code) if use.code == "FM335"] == ["commented"]
    beside = code.replace("return ", 'return hasattr(m, "module") and ')
    said = {use.becomes.partition("So is what stands beside it")[2] for use in scan_source(beside)}
    assert any(each.endswith('hasattr(m,"module"): leave that out.') for each in said)


@pytest.mark.parametrize(
    ("test", "is_said"),
    [
        # False of FSDP1's class, and true of FSDP2's.
        ('"FSDP" in type(model).__name__', True),
        ('"fsdp" in type(model).__name__.lower()', True),
        ('type(model).__name__.startswith("FSDP")', True),
        ('re.match("FSDP", model.__class__.__name__)', True),
        ('"FSDP" not in f"{type(model)}"', True),
        # The other way round.
        ('"DataParallel" in type(model).__name__', True),
        ('type(model).__name__.endswith("Parallel")', True),
        ('"fullysharded" in str(model).lower()', True),
        ('model._get_name() in ["FullyShardedDataParallel", "DDP"]', True),
        ('"fully_sharded_data_parallel" in model.__class__.__module__', True),
        # The same of both.
        ('"fsdp" in type(model).__module__', False),
        ('re.search("FSDP|FullySharded", type(model).__name__)', False),
        ('type(model).__name__.endswith("Compressed")', False),
        # Another object.
        ('"FSDP" in type(plugin).__name__', False),
        ('"DataParallel" in type(plugin).__name__', False),
        ('"FSDP" in names', False),
        ('"FSDP" in model.config.name', False),
    ],
)
def test_what_fsdp2s_class_answers_otherwise(test: str, *, is_said: bool) -> None:
    body = f"{MODEL}if {test}:\n    model.train()\n"
    # What is false now is not done any more, and stops a run; what is true since does not.
    is_false_now = "Parallel" in test or "ully" in test
    said = [code for code, _ in codes(body, IMPORTS + "import re\n")]
    assert (("FM335" if is_false_now else "FM316") in said) is is_said


@pytest.mark.parametrize(
    ("use", "is_said"),
    [
        ('if "DataParallel" in type(model).__name__:\n    model = model.module\n', False),
        ('inner = model.module if "DataParallel" in type(model).__name__ else model\n', False),
        ('if "DataParallel" in type(model).__name__:\n    model = model.other\n', True),
        ('inner = model.other if "DataParallel" in type(model).__name__ else model\n', True),
    ],
)
def test_a_name_that_only_takes_the_wrapper_off(use: str, *, is_said: bool) -> None:
    assert ("FM335" in [code for code, _ in codes(MODEL + use)]) is is_said


def test_the_word_in_a_setting_is_no_class() -> None:
    assert ("FM335", "commented") not in codes('ok = args.strategy == "FullyShardedDataParallel"\n')


@pytest.mark.parametrize(
    "theirs", ["class FullyShardedDataParallel(Module):\n    pass\n", 'info = part["flatten_info"]\n']
)
def test_the_names_of_another_packages_fsdp_are_its_own(theirs: str) -> None:
    name = 'full = prefix + "_fsdp_wrapped_module." + name\n'
    assert "FM316" not in {use.code for use in scan_source(theirs + name)}
    torchs = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    assert "FM316" in {use.code for use in scan_source(torchs + theirs + name)}
    assert "FM316" in {use.code for use in scan_source(name)}


@pytest.mark.parametrize(
    ("loop", "is_said"),
    [
        ("for name, p in net.named_parameters():\n    if 'fsdp' in name:\n        continue\n", True),
        ("kept = [k for k in net.state_dict() if '_fsdp.' not in k]\n", True),
        ("for name in backends:\n    if 'fsdp' in name:\n        continue\n", False),
        ("for name, p in net.named_parameters():\n    if 'fsdp' in mode:\n        continue\n", False),
    ],
)
def test_a_short_word_for_what_stood_in_names(loop: str, *, is_said: bool) -> None:
    assert (("FM316", "commented") in codes(loop)) is is_said


@pytest.mark.parametrize(
    ("test", "is_said"),
    [
        ("self.trainer.strategy.__class__.__name__ == 'FSDPStrategy'", True),
        ("type(trainer.strategy).__name__ in ('DDPStrategy', 'FSDPStrategy')", True),
        ("'FSDP' in type(fabric._strategy).__name__", True),
        ("type(trainer.strategy).__name__.startswith('FSDP')", True),
        ("type(trainer.strategy).__name__ == 'DDPStrategy'", False),
        ("type(m).__name__.startswith('FSDPBlock')", False),
    ],
)
def test_lightnings_strategy_by_its_name(test: str, is_said: bool) -> None:
    assert (("FM316", "commented") in codes(f"if {test}:\n    clip()\n", "")) is is_said


TRIED = """\
def find(key, keys, other):
    if {first} in keys:
        {leaves}
    if "model." + key in keys:
        return "model." + key
    if "_fsdp_wrapped_module." + key in {where}:
        return "_fsdp_wrapped_module." + key
"""


@pytest.mark.parametrize(
    ("first", "leaves", "where", "is_kept"),
    [
        ("key", "return key", "keys", True),
        ("key", "other.append(key)", "other", False),
        ("key", "return key", "other", False),
        ("other", "return key", "keys", False),
    ],
)
def test_the_last_of_several_tries_is_no_work(first: str, leaves: str, where: str, *, is_kept: bool) -> None:
    code = TRIED.format(first=first, leaves=leaves, where=where)
    wanted = {"kept" if is_kept else "commented"}
    chained = code.replace('    if "', '    elif "')
    by_format = code.replace('"_fsdp_wrapped_module." + key', 'f"_fsdp_wrapped_module.{key}"')
    for each in (code, chained, by_format):
        assert {use.action for use in scan_source(each) if use.code == "FM316"} == wanted


def test_a_function_of_another_file_asks_for_the_name(tmp_path: Path) -> None:
    (tmp_path / "ask.py").write_text('def is_one(m):\n    return "FSDP" in type(m).__name__\n')
    for given, is_said in (("model", True), ("net.other", False)):
        main = f"{IMPORTS}from ask import is_one\n\ndef main(net):\n    model = FSDP(net)\n"
        main += f"    is_one({given})\n"
        (tmp_path / "main.py").write_text(main)
        said = [use.code for use in scan_paths([tmp_path]).uses if use.path.endswith("ask.py")]
        assert ("FM316" in said) is is_said


@pytest.mark.parametrize(
    ("around", "asked", "is_said"),
    [
        ("try:\n    save(model)\nexcept TypeError as e:\n    {}", "str(e)", False),
        ("try:\n    save(model)\nexcept TypeError as e:\n    {}", "str(model)", True),
        ("with pytest.raises(TypeError) as info:\n    save(model)\n{}", "str(info.value)", False),
        ("with torch.no_grad() as info:\n    save(model)\n{}", "str(info.value)", True),
    ],
)
def test_the_text_of_an_error_is_no_models(around: str, asked: str, *, is_said: bool) -> None:
    test = f'assert "FullyShardedDataParallel" in {asked}\n'
    assert ("FM335" in [code for code, _ in codes(MODEL + around.format(test))]) is is_said
