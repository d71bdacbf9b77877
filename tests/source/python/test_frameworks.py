"""Models that frameworks shard, where the source says so: each with what is said of it."""

from __future__ import annotations

import pytest

from fsdp_migrate.source import scan_source


pytestmark = pytest.mark.any_torch

LIGHTNING = "import torch\nimport lightning as L\n\n\nclass Lit(L.LightningModule):\n"
TRAINED = "L.Trainer(strategy='fsdp', devices=2).fit(Lit())\n"
HF = (
    "import torch\nfrom transformers import Trainer, TrainingArguments\n"
    'arguments = TrainingArguments(output_dir="x", fsdp="full_shard")\n'
    "trainer = Trainer(model=model, args=arguments)\n"
)
TYPE = (
    "import torch\nfrom accelerate import Accelerator\nfrom accelerate.utils import DistributedType\n"
    "accelerator = Accelerator()\nmodel, optimizer = accelerator.prepare(model, optimizer)\n"
)
CODES = frozenset({"FM315", "FM318", "FM326", "FM333", "FM423", "FM448"})


def said(code: str) -> dict[str, str]:
    return {use.code: use.becomes for use in scan_source(code) if use.code in CODES}


@pytest.mark.parametrize(
    ("hook", "body", "code"),
    [
        ("configure_optimizers(self)", "return [p for p in self.parameters() if p.ndim > 1]", "FM318"),
        ("on_before_optimizer_step(self, o)", "return [p.grad.norm() for p in self.parameters()]", "FM423"),
        ("on_save_checkpoint(self, c)", "c['ema'] = self.model.state_dict()", "FM333"),
        (
            "configure_gradient_clipping(self, o, v, a)",
            "torch.nn.utils.clip_grad_norm_(self.parameters(), v)",
            "FM326",
        ),
        ("on_before_optimizer_step(self, o)", "self.clip_gradients(o, gradient_clip_val=1.0)", ""),
        ("on_train_epoch_end(self)", "self.module.reset(self.forward)", ""),
        ("on_save_checkpoint(self, c)", "c['x'] = self.scheduler.state_dict()", ""),
        ("training_step(self, batch, i)", "return [p.norm() for p in self.parameters()]", ""),
        ("configure_model(self)", "self.model.load_state_dict(torch.load(p))", ""),
        ("__init__(self)", "self.model.load_state_dict(torch.load(p))", ""),
    ],
)
def test_a_lightning_module_is_sharded_in_hooks_behind_the_strategys_setup(
    hook: str, body: str, code: str
) -> None:
    source = f"{LIGHTNING}    def {hook}:\n        {body}\n\n\n"
    assert list(said(source + TRAINED)) == ([code] if code else [])
    assert not said(source + TRAINED.replace("fsdp", "ddp"))


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("{}", "Take self.clip_gradients(optimizer, gradient_clip_val=max_norm), and see"),
        ("norm = {}\n        self.log('norm', norm)", "Leave this line, whose norm is used"),
        ("self.log('norm', {})", "Leave this line, whose norm is used"),
    ],
)
def test_the_norm_of_a_lightning_module_is_used(line: str, advice: str) -> None:
    clip = line.format("torch.nn.utils.clip_grad_norm_(self.parameters(), 1e9)")
    source = f"{LIGHTNING}    def on_before_optimizer_step(self, o):\n        {clip}\n\n\n{TRAINED}"
    assert advice in said(source)["FM326"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("torch.save(model.state_dict(), p)\n", "FM333"),
        ("torch.save(trainer.model.state_dict(), p)\n", "FM333"),
        ("model.save_pretrained(p)\n", "FM333"),
        ("trainer.model_wrapped.module\n", "FM333"),
        ("trainer.save_model(p)\n", ""),
        ("tokenizer.save_pretrained(p)\n", ""),
    ],
)
def test_hugging_faces_trainer_has_sharded_its_model_after_training(body: str, code: str) -> None:
    found = said(f"{HF}trainer.train()\n{body}")
    assert list(found) == ([code] if code else [])
    assert all("Hugging Face's Trainer" in text for text in found.values())
    assert not said(f"{HF}{body}trainer.train()\n")
    assert not said(f"{HF.replace('full_shard', '')}trainer.train()\n{body}")


@pytest.mark.parametrize(
    ("given", "is_said"),
    [
        ("**{'model': model, 'args': arguments}", True),
        ("**dict(model=model, args=arguments)", True),
        ("model, **more", True),
        ("**more", False),
        ("args=arguments, **kept", True),
    ],
)
def test_a_trainer_that_is_given_a_dict(given: str, *, is_said: bool) -> None:
    made = "more = {'args': arguments}\nkept = dict(model=model)\n"
    source = HF.replace("trainer = Trainer(model=model, args=arguments)", f"{made}trainer = Trainer({given})")
    assert source != HF
    assert ("FM333" in said(f"{source}trainer.train()\nmodel.save_pretrained(p)\n")) is is_said


def test_accelerates_model_is_sharded_where_its_type_is_found_to_be_fsdp() -> None:
    asked = "if accelerator.distributed_type == DistributedType.FSDP:\n    x = model.module\n"
    assert (
        "accelerator.get_state_dict"
        in said(TYPE + asked.replace("x = model.module", "model.state_dict()"))["FM333"]
    )
    assert list(said(TYPE + asked)) == ["FM333"]
    assert not said(TYPE + asked.replace("==", "!="))
    uses = scan_source(f"{TYPE}{asked}else:\n    y = model.module\n# fsdp\n")
    assert [use.text for use in uses if use.code == "FM333"] == ["model.module"]


@pytest.mark.parametrize(
    ("asks", "test", "is_said"),
    [
        ("accelerator.distributed_type == DistributedType.FSDP", "on", True),
        ("accelerator.distributed_type == DistributedType.FSDP", "not on", False),
        ("accelerator.distributed_type == DistributedType.FSDP", "on or accelerator.is_main_process", True),
        ("accelerator.distributed_type != DistributedType.FSDP", "on", False),
        ("getattr(accelerator.state, 'fsdp_plugin', None) is not None", "on", True),
        ("getattr(accelerator.state, 'fsdp_plugin', None) is None", "on", False),
        ("getattr(accelerator.state, 'fsdp_plugin', None)", "on", True),
        ("accelerator.state.fsdp_plugin is not None", "on", True),
        ("'FSDP' in str(accelerator.distributed_type)", "on", True),
        ("accelerator.is_fsdp2 or accelerator.distributed_type.value == 'FSDP'", "on", True),
        ("accelerator.num_processes > 1", "on", False),
    ],
)
def test_a_name_that_holds_how_accelerate_was_launched(asks: str, test: str, *, is_said: bool) -> None:
    body = f"on = {asks}\nif {test}:\n    torch.save(model.state_dict(), p)\n"
    assert ("FM333" in said(f"{TYPE}{body}# fsdp\n")) is is_said


def test_the_models_that_an_accelerator_keeps_are_clipped_as_sharded() -> None:
    clips = "accelerator._models[0].clip_grad_norm_(1.0, 2)\n"
    asked = f"if accelerator.distributed_type == DistributedType.FSDP:\n    {clips}"
    assert {use.action for use in scan_source(TYPE + asked) if use.code == "FM311"} == {"rewritten"}
    assert "FM311" not in {use.code for use in scan_source(f"{TYPE}{clips}# FSDP\n")}


_PLUGIN = "from accelerate import Accelerator, FullyShardedDataParallelPlugin as P\nimport torch\n"
_CLIP = "torch.nn.utils.clip_grad_norm_({}.parameters(), 1.0)"
_RUN = (
    "def main(a, model, opt, on):\n    accelerator = Accelerator(fsdp_plugin=P()) if on else None\n"
    f"    {{}}\n    if {{}}:\n        x = 1\n    else:\n        {_CLIP.format('model')}\n"
)
_PREPARE = "model, opt = accelerator.prepare(model, opt)"
_IF = f"if accelerator is not None:\n        {_PREPARE}"


@pytest.mark.parametrize(
    ("prepare", "asked", "is_said"),
    [
        (_IF, "accelerator", False),
        (_IF, "accelerator is not None", False),
        (f"if accelerator:\n        {_PREPARE}", "accelerator is not None", False),
        (f"if on:\n        {_PREPARE}", "accelerator and a", True),
        (f"if on:\n        {_PREPARE}", "accelerator", False),
        (_IF, "a", True),
        (_IF, "accelerator is None", True),
        (f"{_IF}\n    else:\n        model = accelerator.prepare(model)", "accelerator is not None", False),
        (f"{_IF}\n    accelerator = None", "accelerator", True),
        (
            f"{_IF}\n    model = prepared(model)\n    model = other.accelerator.prepare(model)",
            "accelerator",
            True,
        ),
    ],
)
def test_without_an_accelerator_nothing_was_prepared(prepare: str, asked: str, *, is_said: bool) -> None:
    found = {use.code for use in scan_source(f"{_PLUGIN}{_RUN.format(prepare, asked)}")}
    assert ("FM326" in found) is is_said


@pytest.mark.parametrize(
    ("last", "is_said"), [("pass", False), ("def close(self):\n        self.accelerator = None", True)]
)
def test_an_attribute_that_is_none_until_it_is_set_up(last: str, *, is_said: bool) -> None:
    body = (
        "class T:\n    def __init__(self):\n        self.accelerator = None\n    def setup(self):\n"
        "        self.accelerator = Accelerator(fsdp_plugin=P())\n    def build(self):\n"
        "        self.model = self.accelerator.prepare(self.model)\n    def step(self):\n"
        f"        if self.accelerator is None:\n            {_CLIP.format('self.model')}\n    {last}\n"
    )
    found = {use.code for use in scan_source(f"{_PLUGIN}{body}")}
    assert ("FM326" in found) is is_said
