"""What is said of a shell script in which nothing can be changed."""

from __future__ import annotations

import pytest

from fsdp_migrate.adapters.conversion.command import convert_script
from fsdp_migrate.errors import ConfigError, NothingToConvertError


pytestmark = pytest.mark.any_torch


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            ("accelerate launch --config_file <(cat <<EOF\nfsdp_config:\n  of_nobody: 1\nEOF\n) train.py\n"),
            "The here-document in line 1 holds FSDP settings",
        ),
        ("fairseq-train d --ddp-backend fully_sharded --fp16\n", "is fairscale's FSDP, not torch's"),
        ("fairseq-hydra-train distributed_training.ddp_backend=fully_sharded\n", "is fairscale's FSDP"),
        (
            "python -m verl.trainer.main_ppo actor_rollout_ref.actor.strategy=fsdp\n",
            "`actor_rollout_ref` is of verl",
        ),
        ("python main.py +training.model.fsdp_sharded_checkpoint=True\n", "checkpoint` is of NeMo"),
        ("torchrun --nnodes 1 -m verl.trainer.fsdp_sft_trainer a=1\n", "`verl` is of verl, whose settings"),
        ("python -u t.py lr=1 trainer=FSDPTrainer\n", "FSDP is named by `trainer=FSDPTrainer`"),
        ("mgen fit --config conf/LoRA_FSDP.yaml\n", "`fsdp-migrate config conf/LoRA_FSDP.yaml`"),
        (
            "torchrun --nproc_per_node 8 -m pkg.fsdp1-peft\n",
            "It starts `pkg.fsdp1-peft`: `fsdp-migrate scan`",
        ),
        ("FSDP=full_shard\nexport FSDP\npython t.py\n", "FSDP is named by `FSDP=full_shard`"),
        (
            "torchrun -m verl.trainer.fsdp_sft_trainer model.strategy=fsdp2\n",
            "or for the `model` of its SFT trainer. That stands there already.",
        ),
        ('export MODE="${MODE:-FSDP}"\ntorchrun t.py\n', 'FSDP is named by `MODE="${MODE:-FSDP}"`'),
        ("FSDP=full_shard python t.py\n", "FSDP is named by `FSDP=full_shard`"),
        ("srun torchrun src/train_fsdp.py  # fsdp_old.py\n", "It starts `src/train_fsdp.py`: `fsdp-migrate"),
        ("srun python $R/fsdp_q/train.py\n", "It starts `$R/fsdp_q/train.py`: `fsdp-migrate"),
        ("torchrun t.py --a 1 --mode=fsdp\n", "FSDP is named by `--mode=fsdp`: what that chooses"),
        ("torchrun t.py \\\n  --dist \\\n  FSDP \\\n  --b\n", "FSDP is named by `--dist FSDP`: what"),
        ("python t.py trainer=fsdp\n", "FSDP is named by `trainer=fsdp`: what that chooses"),
        ("srun sub/go_fsdp.sh 48\n", "It starts `sub/go_fsdp.sh`: `fsdp-migrate config sub/go_fsdp.sh`."),
        ("R=/w\nbash r.sh --cfg=${R}/c/f_fsdp.json\n", "`fsdp-migrate config /w/c/f_fsdp.json`"),
        (
            "bash r.sh --cfg=${R}/c/f_fsdp.json\n",
            "`c/f_fsdp.json`: `fsdp-migrate config c/f_fsdp.json`",
        ),
        ("bash r.sh --config_file $R/c.yaml\n", "It names `c.yaml`: `fsdp-migrate config c.yaml`"),
        ("bash r.sh ${R}_fsdp.json\n", "It names `${R}_fsdp.json`, which may have FSDP settings."),
        ('D="c"\ntorchrun r.py ${D}/a-fsdp.yaml\n', "It names `c/a-fsdp.yaml`: `fsdp-migrate"),
        ("bash $R/go_fsdp.sh\n", "It starts `go_fsdp.sh`: `fsdp-migrate config go_fsdp.sh`."),
        ("torchrun t.py worker.actor.fsdp.enable_full_shard=true\n", "is a fork of verl that makes FSDP1"),
        ('cat > c.json <<E\n{\n  "fsdp_config": {}\n}\nE\npython t.py\n', "in line 1 holds FSDP settings"),
    ],
)
def test_whose_the_settings_are(text: str, said: str) -> None:
    with pytest.raises(NothingToConvertError) as caught:
        convert_script(text)
    assert said in str(caught.value)
    assert "fsdp_old" not in str(caught.value)


def test_settings_that_a_script_writes_are_told_beside_its_flags() -> None:
    script = "cat > c.yaml <<E\nfsdp_config:\n  fsdp_version: 1\nE\n"
    done = convert_script(f"{script}torchrun t.py --fsdp full_shard --fsdp_config c.json\n")
    told = [f.message for f in done.findings if f.subject == "here-document"]
    assert len(told) == 1
    assert "convert the file that the script writes" in told[0]


def test_names_and_comments_choose_nothing() -> None:
    with pytest.raises(ConfigError, match=r"`accelerate launch`\.$"):
        convert_script("RUN=my-fsdp-run python t.py --name test_fsdp --strategy fsdp2  # --mode=fsdp\n")


@pytest.mark.parametrize(
    "text",
    [
        "python t.py\n",
        'echo "FSDP Training"\necho fsdp\npython t.py\n',
        'echo "Starting FSDP ($N GPUs) for FSDP"\npython t.py\n',
        'FSDP="full_shard auto_wrap"\npython t.py --deepspeed ds.json\n',
        "MODE=fsdp\npython t.py\n",
        "torchrun t.py --vocab-file $R/fsdp_test/vocab.json\n",
    ],
)
def test_a_script_without_fsdp_says_no_more(text: str) -> None:
    with pytest.raises(ConfigError, match=r"`accelerate launch`\.$"):
        convert_script(text)


@pytest.mark.parametrize(
    "printed",
    [
        'if [ -n "$X" ]; then echo "use run_fsdp.sh instead" >&2; fi; ',
        "printf 'see run_fsdp.sh\\n' >&2\n",
        'x || echo "not train_fsdp.py, or --sharding_strategy"\n',
        'echo "conf/fsdp.yaml is read by mode=fsdp"; ',
    ],
)
def test_what_is_printed_starts_and_names_nothing(printed: str) -> None:
    with pytest.raises(NothingToConvertError) as caught:
        convert_script(f"{printed}torchrun train_ddp.py\n")
    assert str(caught.value).endswith("FSDP flags of HF Trainer or of `accelerate launch`.")


@pytest.mark.parametrize("handed_on", ['echo "bash run_fsdp.sh" | sh\n', 'echo "bash run_fsdp.sh" > go.sh\n'])
def test_what_is_printed_into_a_shell_or_a_file_is_named(handed_on: str) -> None:
    with pytest.raises(NothingToConvertError, match=r"It starts `run_fsdp\.sh`"):
        convert_script(handed_on)
