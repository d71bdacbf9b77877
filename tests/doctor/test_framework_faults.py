"""Known faults that the config of a framework shows: each is seen where it is, and not where it is not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from torch import nn

from fsdp_migrate.doctor.framework_faults import FRAMEWORK_FAULTS
from tests.doctor.sights import LOW, assert_seen, of_config
from tests.doctor.test_checkpoint_faults import of_accelerate


if TYPE_CHECKING:
    from fsdp_migrate.doctor import KnownFault, Sight


pytestmark = pytest.mark.any_torch


HF_2 = {"version": 2, "state_dict_type": "FULL_STATE_DICT"}
BY_SIZE = {"fsdp_auto_wrap_policy": "SIZE_BASED_WRAP", "fsdp_min_num_params": "50"}


class Towers(nn.Module):
    """Has experts that its blocks hold too."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.blocks = nn.ModuleList(nn.Sequential(each, nn.ReLU()) for each in self.experts)


class Tied(nn.Module):
    """Has BERT's head in small, or with ``elsewhere`` T5's embeddings."""

    def __init__(self, *, elsewhere: bool = False, twice: bool = False) -> None:
        super().__init__()
        self.embed, self.decoder = nn.Embedding(4, 4), nn.Linear(4, 4)
        self.decoder.weight = self.embed.weight
        if elsewhere:
            self.encoder = nn.Embedding(4, 4)
            self.encoder.weight = self.embed.weight
        if twice:
            self.bias = self.decoder.bias

    def get_input_embeddings(self) -> nn.Module:
        return self.embed

    def get_output_embeddings(self) -> nn.Module:
        return self.decoder


def with_model(model: nn.Module, framework: str = "accelerate", **settings: object) -> Sight:
    return replace(of_config(framework, settings=settings), model=model)


class Inside(nn.Module):
    """Has embeddings in a part that the policy makes a unit; ``is_mute``: it does not tell of them."""

    def __init__(self, *, is_mute: bool = False) -> None:
        super().__init__()
        self.part, self.is_mute = nn.Sequential(nn.Embedding(4, 4), nn.LayerNorm(4)), is_mute

    def get_input_embeddings(self) -> nn.Module:
        if self.is_mute:
            raise NotImplementedError
        return self.part[0]


BLOCKS = {"transformer_layer_cls": "Sequential"}
PARTS = {"transformer_layer_cls": ["Sequential", "Linear"]}

CASES: dict[str, tuple[Sight, Sight]] = {
    "trainer-ignores-version": (
        of_config("hf", {"transformers": "4.57.0"}, settings=HF_2),
        of_config("hf", settings=HF_2),
    ),
    "trainer-keeps-parameters": (
        of_config("hf", {"transformers": "5.3.0"}, settings=HF_2),
        of_config("hf", {"transformers": "5.3.0"}, settings={**HF_2, "reshard_after_forward": True}),
    ),
    "trainer-ignores-settings": (
        of_config("hf", {"transformers": "5.9.0"}, settings=HF_2),
        of_config("hf", {"transformers": "5.10.0"}, settings=HF_2),
    ),
    "trainer-defaults-to-fsdp2": (of_config("hf"), of_config("hf", settings=HF_2)),
    "trainer-wraps-by-size-no-more": (
        of_config("hf", settings={"min_num_params": 100}),
        of_config("hf", settings={"min_num_params": 100, "auto_wrap_policy": "SIZE_BASED_WRAP"}),
    ),
    "accelerate-wraps-containers": (
        of_config("accelerate", settings=BY_SIZE),
        of_config("composer", settings=BY_SIZE),
    ),
    "accelerate-recomputes-children": (
        of_config("accelerate", settings={"fsdp_activation_checkpointing": True}),
        of_config("composer", settings={"fsdp_activation_checkpointing": True}),
    ),
    "accelerate-shards-no-shard": (
        of_config("accelerate", sharding_strategy="NO_SHARD"),
        of_config("accelerate"),
    ),
    "accelerate-refuses-forward-prefetch": (
        of_config("accelerate", forward_prefetch=True),
        of_config("accelerate"),
    ),
    "accelerate-shards-lose-moments": (
        replace(of_config("accelerate"), settings={"fsdp_state_dict_type": "SHARDED_STATE_DICT"}),
        replace(of_config("accelerate"), settings={"fsdp_state_dict_type": "FULL_STATE_DICT"}),
    ),
    "accelerate-splits-ties": (with_model(Tied(twice=True)), with_model(Tied())),
    "accelerate-splits-modules": (
        replace(of_config("accelerate", auto_wrap_policy=BLOCKS), model=Towers()),
        replace(of_config("accelerate", auto_wrap_policy=PARTS), model=Towers()),
    ),
    "accelerate-carves-units": (
        replace(of_config("hf", auto_wrap_policy=BLOCKS), model=Inside()),
        replace(of_config("hf", auto_wrap_policy={"transformer_layer_cls": "Embedding"}), model=Inside()),
    ),
    "accelerate-asks-for-embeddings": (
        with_model(Inside(is_mute=True), "hf"),
        with_model(Inside(), "hf"),
    ),
    "accelerate-loads-not-all": (
        with_model(nn.BatchNorm1d(2, affine=False)),
        with_model(nn.BatchNorm1d(2), fsdp_cpu_ram_efficient_loading="false"),
    ),
    "accelerate-tears-ties": (with_model(Tied()), with_model(Tied(), "hf")),
    "composer-has-no-hybrid": (
        of_config("composer", sharding_strategy="HYBRID_SHARD"),
        of_config("composer"),
    ),
    "composer-ignores-strategy": (
        of_config("composer", sharding_strategy="SHARD_GRAD_OP"),
        of_config("composer"),
    ),
    "buffers-stay": (of_config(**LOW), of_config(mixed_precision={"param_dtype": "bf16"})),
}


@pytest.mark.parametrize("fault", FRAMEWORK_FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_seen_where_it_is_and_nowhere_else(fault: KnownFault) -> None:
    assert_seen(fault, *CASES[fault.name])


def test_hf_trainer_hands_its_checkpointing_on_to_accelerate() -> None:
    (fault,) = (each for each in FRAMEWORK_FAULTS if each.name == "accelerate-recomputes-children")
    for settings in ({"activation_checkpointing": True}, {"fsdp_activation_checkpointing": "true"}):
        assert "`activation_checkpointing` is on" in fault.sees(of_config("hf", settings=settings))
    assert not fault.sees(of_config("hf", settings={"activation_checkpointing": False}))


def test_every_case_is_one_of_a_fault() -> None:
    assert CASES.keys() == {fault.name for fault in FRAMEWORK_FAULTS}


def test_a_list_that_is_wrapped_by_size_is_named() -> None:
    (fault,) = (each for each in FRAMEWORK_FAULTS if each.name == "accelerate-wraps-containers")
    blocks = nn.Sequential(nn.ModuleList([nn.Linear(8, 8)]), nn.Linear(8, 8))
    seen = replace(of_config("accelerate", settings=BY_SIZE), model=blocks)
    assert fault.sees(seen) == "SIZE_BASED_WRAP, and `0`"
    assert not fault.sees(replace(seen, settings={**BY_SIZE, "fsdp_min_num_params": 100}))
    assert not fault.sees(replace(seen, model=blocks[1]))
    trainer = of_config("hf", settings={"min_num_params": 50})
    assert fault.sees(trainer).startswith("`min_num_params: 50`, if")
    assert not fault.sees(of_config("hf", settings={"min_num_params": 0}))


def fault_of(name: str) -> KnownFault:
    return next(each for each in FRAMEWORK_FAULTS if each.name == name)


def test_where_accelerate_splits_a_parameter_is_said() -> None:
    sees = fault_of("accelerate-splits-ties").sees
    assert sees(with_model(Tied(twice=True), "hf")) == (
        "`bias`, `decoder.bias` are one parameter, of the root and the unit of embeddings and head"
    )
    assert "`embed.weight`, `decoder.weight`, `encoder.weight` are" in sees(with_model(Tied(elsewhere=True)))
    # These shard with `prepare_fully_shard`, or have a carving of their own.
    for name in ("", "axolotl", "lightning", "composer"):
        assert not sees(with_model(Tied(twice=True), name))


@pytest.mark.parametrize("error", [NotImplementedError, AttributeError])
def test_whatever_a_models_own_methods_raise_stops_accelerate(error: type[Exception]) -> None:
    class Mute(nn.Linear):
        def get_output_embeddings(self) -> nn.Module:
            raise error

    seen = fault_of("accelerate-asks-for-embeddings").sees(with_model(Mute(2, 2), "hf"))
    assert seen == "`get_output_embeddings()` of `Mute` raises"


def test_a_module_at_two_places_is_no_tie() -> None:
    seen = replace(of_config("hf", auto_wrap_policy=BLOCKS), model=Towers())
    assert (
        fault_of("accelerate-splits-modules")
        .sees(seen)
        .startswith("`experts.0.weight`, `blocks.0.0.weight` are of one module, of the root and `blocks.0`")
    )
    assert not fault_of("accelerate-splits-ties").sees(seen)
    assert not fault_of("accelerate-splits-modules").sees(with_model(Tied(twice=True)))


def test_who_goes_over_the_meta_device() -> None:
    sees = fault_of("accelerate-loads-not-all").sees
    assert sees(with_model(nn.BatchNorm1d(2))) == (
        "the buffer `running_mean`; the buffer `running_var`; the buffer `num_batches_tracked` and 2 more"
    )
    bare = nn.Linear(2, 2)
    assert sees(with_model(bare)) == "the model's own `weight`; the model's own `bias`"
    assert not sees(with_model(nn.Sequential(bare)))
    assert not sees(with_model(bare, "hf"))
    assert sees(with_model(bare, "hf", cpu_ram_efficient_loading="true"))
    bare.get_parameter_or_buffer = bare.get_parameter  # type: ignore[assignment]
    assert not sees(with_model(bare))
    tied = Tied()
    tied.tie_weights = lambda: None  # type: ignore[assignment]
    assert not fault_of("accelerate-tears-ties").sees(with_model(tied))


def test_sources_show_whether_a_run_is_resumed() -> None:
    fault = next(each for each in FRAMEWORK_FAULTS if each.name == "accelerate-shards-lose-moments")
    settings = {"fsdp_state_dict_type": "SHARDED_STATE_DICT"}
    sight = replace(of_config("accelerate"), settings=settings)
    for line, is_there in {"accelerator.load_state(x)": True, "accelerator.save_state(x)": False}.items():
        assert ("train.py:1" in fault.sees(replace(sight, sources={"train.py": line}))) is is_there
    assert fault.sees(replace(sight, settings={**settings, "fsdp_version": 2})) == ""
    # A checkpoint that holds such shards names the same fault.
    for file, is_there in {"optimizer_0/__0_0.distcp": False, "optimizer.bin": True}.items():
        assert bool(fault.sees(replace(sight, manifest=of_accelerate(file).manifest))) is is_there
