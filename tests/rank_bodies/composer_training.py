"""Real Composer Trainers on the ranks of a test: under FSDP1, and the same call with the callback."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.tensor import DTensor

from tests.models import VOCABULARY, Net, batch


@dataclass(frozen=True)
class Run:
    """A Trainer call. ``migrate`` adds the callback, with ``callback``'s arguments."""

    fsdp: dict[str, Any] | None = field(default_factory=dict)
    migrate: bool = True
    callback: dict[str, Any] = field(default_factory=dict)
    model: str = "net"
    optimizer: str = "sgd"
    warmup: bool = False
    steps: int = 3
    rows: int = 2
    precision: str = "fp32"
    algorithms: tuple[str, ...] = ()
    trainer: dict[str, Any] = field(default_factory=dict)
    twice: bool = False


def train_all(runs: list[Run]) -> list[dict[str, Any]]:
    """Do the runs one after the other, on the same ranks."""
    prepare()
    return [train(run) for run in runs]


def prepare() -> None:
    warnings.simplefilter("ignore")
    # Composer's FSDP1 asks CUDA for its device without looking whether there is one.
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]
    os.environ.setdefault("COMPOSER_LOG_LEVEL", "ERROR")


def train(run: Run) -> dict[str, Any]:
    """Build the Trainer, fit, and return what became of it."""
    losses: list[float] = []
    trainer = make_trainer(run, losses)
    trainer.fit()
    found = {
        "losses": losses,
        "parameters": whole(trainer.state.model),
        "optimizer": optimizer_state(trainer.state),
        "findings": findings_of(trainer),
    }
    trainer.close()
    dist.barrier()
    return found


def make_trainer(run: Run, losses: list[float]) -> Any:
    from composer import Trainer

    model = make_model(run.model)
    callbacks: list[Any] = [_recorder(losses)]
    if run.migrate:
        from fsdp_migrate.adapters.composer_callback import FSDP2Migration

        callbacks += [FSDP2Migration(**run.callback) for _ in range(2 if run.twice else 1)]
    arguments: dict[str, Any] = {
        "model": model,
        "train_dataloader": loader(run.steps, run.rows),
        "optimizers": make_optimizer(run.optimizer, model),
        "schedulers": _warmup() if run.warmup else None,
        "max_duration": f"{run.steps}ba",
        "precision": run.precision,
        "device": "cpu",
        "seed": 3,
        "callbacks": callbacks,
        "algorithms": [make_algorithm(name) for name in run.algorithms],
        "progress_bar": False,
        "log_to_console": False,
        **run.trainer,
    }
    if run.fsdp is not None:
        arguments["parallelism_config"] = {"fsdp": dict(run.fsdp)}
    return Trainer(**arguments)


class Rows(torch.utils.data.Dataset[torch.Tensor]):
    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index]


def loader(steps: int, rows: int) -> Any:
    from torch.utils.data import DataLoader, DistributedSampler

    world = dist.get_world_size()
    data = torch.cat([batch(step, rank, rows=rows) for step in range(steps) for rank in range(world)])
    sampler: Any = DistributedSampler(Rows(data), shuffle=False)
    return DataLoader(Rows(data), batch_size=rows, sampler=sampler)


def make_model(kind: str) -> Any:
    """Return a ComposerModel: ``net`` marks its blocks, ``fn`` names them by a function, ``tied`` ties."""
    from composer.models import ComposerModel

    class Model(ComposerModel):  # type: ignore[misc,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.net = Net(tied="tied" in kind)
            if "fn" in kind:
                blocks = set(self.net.blocks)
                self.net.fsdp_wrap_fn = lambda module: module in blocks  # type: ignore[assignment]
                self.net.activation_checkpointing_fn = lambda module: module in blocks  # type: ignore[assignment]
            else:
                for block in self.net.blocks:
                    block._fsdp_wrap = True  # type: ignore[assignment]
            if "two" in kind:
                self.extra = nn.Sequential(nn.Linear(VOCABULARY, VOCABULARY), nn.Tanh())
            if "across" in kind:
                self.other = nn.Linear(6, VOCABULARY, bias=False)
                self.other.weight = self.net.embed.weight

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.net(tokens)
            return self.extra(out) if "two" in kind else out

        def loss(self, outputs: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(outputs.float().view(-1, VOCABULARY), tokens.flatten())

    return Model()


def make_optimizer(kind: str, model: nn.Module) -> Any:
    from composer import optim

    parameters = [param for param in model.parameters() if param.requires_grad]
    if kind == "strange":
        parameters.append(nn.Parameter(torch.ones(3)))
        kind = "sgd"
    if kind == "sgd":
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    if kind == "adamw":
        return torch.optim.AdamW(parameters, lr=0.02)
    if kind == "decoupled_sgd":
        return optim.DecoupledSGDW(parameters, lr=0.1, momentum=0.9, weight_decay=1e-3)
    named = list(model.named_parameters())
    decayed = [param for name, param in named if name.endswith("weight")]
    others = [param for name, param in named if not name.endswith("weight")]
    return optim.DecoupledAdamW([{"params": decayed, "weight_decay": 1e-3}, {"params": others}], lr=0.02)


def make_algorithm(name: str) -> Any:
    from composer import algorithms

    if name.startswith("clip"):
        return algorithms.GradientClipping(name.partition("_")[2], 0.05)
    return algorithms.EMA(half_life="2ba")


def _warmup() -> Any:
    from composer.optim import LinearWithWarmupScheduler

    return LinearWithWarmupScheduler(t_warmup="4ba")


def _recorder(losses: list[float]) -> Any:
    from composer import Callback

    class Recorder(Callback):  # type: ignore[misc,unused-ignore]
        def after_loss(self, state: Any, logger: Any) -> None:
            del logger
            losses.append(float(state.loss))

    return Recorder()


def clean(name: str) -> str:
    return name.replace("_fsdp_wrapped_module.", "").replace("_checkpoint_wrapped_module.", "")


def whole(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return every parameter whole, by its plain name; a collective call."""
    with FSDP.summon_full_params(model):
        return {clean(name): _full(param) for name, param in model.named_parameters()}


def optimizer_state(state: Any) -> dict[str, torch.Tensor]:
    """Return the whole state of the optimizer, by parameter and kind; under FSDP2 only."""
    (optimizer,) = state.optimizers
    names = {param: clean(name) for name, param in state.model.named_parameters()}
    return {
        f"{names[param]}.{key}": _full(value)
        for param, values in optimizer.state.items()
        for key, value in values.items()
        if isinstance(value, torch.Tensor) and isinstance(param, DTensor)
    }


def _full(tensor: torch.Tensor) -> torch.Tensor:
    found = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return found.detach().clone()


def findings_of(trainer: Any) -> list[tuple[str, str]]:
    for callback in trainer.state.callbacks:
        if hasattr(callback, "findings"):
            return [(finding.code, finding.subject) for finding in callback.findings]
    return []


def refusals(cases: list[tuple[Run, dict[str, Any]]]) -> list[str]:
    """Return the error of each Trainer call, or an empty string; ``sabotage`` says what is done before."""
    prepare()
    return [_refusal(run, sabotage) for run, sabotage in cases]


def _refusal(run: Run, sabotage: dict[str, Any]) -> str:
    from composer.core import State

    from fsdp_migrate.adapters import composer_callback, composer_hooks

    check, module = composer_hooks.check_composer, vars(composer_callback)
    if "version" in sabotage:
        module["check_composer"] = partial(check, version=sabotage["version"])
    if "hook" in sabotage:
        moved = composer_hooks.Hook(State, sabotage["hook"], ("state",))
        module["check_composer"] = partial(check, hooks=(moved,))
    if sabotage.get("rank") == dist.get_rank():
        run = replace(run, model="tied_across")
    try:
        make_trainer(run, []).close()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        module["check_composer"] = check
    return ""


def described() -> dict[str, Any]:
    """Return what a Trainer with the callback says of itself: to loggers, and in its state."""
    prepare()
    from composer.loggers import LoggerDestination

    from fsdp_migrate.prepare import shard_plan

    class Memory(LoggerDestination):  # type: ignore[misc,unused-ignore]
        def log_hyperparameters(self, hyperparameters: dict[str, Any]) -> None:
            told.update(hyperparameters)

        def log_table(self, columns: list[str], rows: list[Any], name: str = "", step: Any = None) -> None:
            del step
            told[f"table {name}"] = [columns, *rows]

    told: dict[str, Any] = {}
    fsdp = {"state_dict_type": "sharded", "sharded_ckpt_prefix_dir": "ba{batch}", "limit_all_gathers": True}
    trainer = make_trainer(Run(fsdp=fsdp, model="two", trainer={"loggers": [Memory()]}), [])
    state = trainer.state
    config = state.fsdp_config
    found = {
        "hyperparameters": told["fsdp2_migration"],
        "table": told["table fsdp2_migration"],
        "version": state.fsdp_config_version,
        "kinds": (
            config.state_dict_type,
            config.sharded_ckpt_prefix_dir,
            state.fsdp_sharded_state_dict_enabled,
        ),
        "units": [unit.fqn for unit in shard_plan(state.model.net).units],
        "classes": [type(child).__name__ for child in state.model.children()],
        "scaler": type(state.scaler).__name__,
    }
    trainer.close()
    return found


def without_effect() -> list[bool]:
    """Return whether Trainers with FSDP2's config, and with none, are what they are without the callback."""
    prepare()
    from composer.utils import FSDP2Config

    found = []
    for fsdp in ({"fsdp": FSDP2Config()}, None):
        run = Run(fsdp=None, trainer={"parallelism_config": fsdp} if fsdp else {})
        trainer = make_trainer(run, [])
        found.append(type(trainer.state.fsdp_config) in {FSDP2Config, type(None)})
        trainer.close()
    return found
