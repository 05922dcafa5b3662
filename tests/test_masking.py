"""Secrets in commands: which are hidden, and what a reader of a run still sees."""

import shlex

import pytest

from vitprof import masking

SECRET = "S3CRET"

NAMED = [
    "python train.py --api-key=S3CRET --epochs 3 --hf-token=S3CRET --db_password='S3CRET with S3CRET'",
    "python train.py --api-key S3CRET --apiKey S3CRET --password S3CRET --x 1 --token S3CRET",
    "env WANDB_API_KEY=S3CRET AWS_SECRET_ACCESS_KEY=S3CRET AWS_SESSION_TOKEN=S3CRET python train.py",
    "env MYSQL_PWD=S3CRET python train.py",
    "python train.py logger.wandb.api_key=S3CRET +hub.token=S3CRET",
    "python train.py --db 'mysql://host/db?user=me&password=S3CRET&ssl=1'",
    "bash -c 'export API_KEY=S3CRET; python train.py --password S3CRET'",
    "bash -c 'export TOKEN=S3CRET' train.py --lr 0.1 '2 words'",
    """python train.py --config '{"api_key": "S3CRET", "lr": 1}'""",
    """python train.py --config '{"password": {"value": "S3CRET"}, "lr": 1}'""",
    r"""python train.py --json '"{\"token\": \"S3CRET\", \"lr\": 1}"'""",
    "python train.py 'https://host/data?X-Amz-Signature=S3CRET&x=1' --jwt S3CRET",
    "python train.py 'https://host/?next=https%3A%2F%2Fh%2F%3Ftoken%3DS3CRET'",
    "python train.py --db 'Server=h;Pwd=S3CRET;' --pw S3CRET",
    "python train.py --user me:S3CRET --key 5S3CRETabcdef",
    "python train.py -u me:S3CRET --auth=me:S3CRET --key=5S3CRETabcdef",
    "python train.py --set password S3CRET --define db.password S3CRET -o token S3CRET",
    "python train.py --password2 S3CRET --api-key-prod=S3CRET --hf-tokens S3CRET,S3CRET",
    "python train.py 'https://maps/api?key=AIzaS3CRETabcdefghi' --x 1 key=5S3CRETabcdef",
    "bash -c 'setenv HF_TOKEN S3CRET && aws configure set aws_secret_access_key S3CRET' train.py",
    "python train.py OPTS DB.PASSWORD S3CRET LR 0.1 --login me S3CRET --encryption-key S3CRET",
    "bash -c 'git config user.password S3CRET; python train.py --hf-token -S3CRETa1b2c3d4e'",
]
HEADERS = [
    "python train.py --header 'Authorization: Bearer S3CRETS3CRET'",
    "python train.py --header 'Authorization: Token S3CRET' --header 'X-API-Key: S3CRET'",
    "python train.py --cookie session=S3CRET --cookies 'a=S3CRET; b=S3CRET' --lr 0.1",
    "python train.py --cookie=session=S3CRET --header 'Cookie: a=S3CRET; b=S3CRET'",
    "bash -c 'curl -b session=S3CRET -bsession=S3CRET https://h/d.tar && python train.py'",
]
PLACES = [
    "python train.py --db postgresql://me:S3CRET@host/db",
    "python train.py --db=postgresql://me:S3CRET@S3CRET/S3CRET@host/db",
    """python train.py --db "postgresql://me:it'sS3CRET@host/db" """,
    "python train.py https://S3CRET@github.com/me/data.git",
    "python train.py --webhook https://hooks.slack.com/services/T0/B0/S3CRET --x 1",
    "python train.py --notify https://discord.com/api/webhooks/123/S3CRET?wait=1",
    "python train.py https://me.webhook.office.com/webhookb2/S3CRET/IncomingWebhook/S3CRET",
    "python train.py https://api.telegram.org/bot123456:S3CRETabcdefghijklmnopq/sendMessage",
    "python train.py https://chat.example/hooks/S3CRET https://hc-ping.com/S3CRET",
    "python train.py https://chat.example/incoming-webhook/S3CRET",
    "python train.py --slack-url https://host/a/S3CRET?b=S3CRET&c=S3CRET --callback-url=https://h/S3CRET",
    "env WEBHOOK_URL=https://host/S3CRET python train.py https://maker.ifttt.com/trigger/t/with/key/S3CRETabcdef",
]
LOOKS = [
    "python train.py hf_S3CRETabcdefghijklmn sk-proj-S3CRETabcdefghijklmn",
    "python train.py npm_S3CRETabcdefghijklmnopq glpat-S3CRETabcdefgh wandb_v1_S3CRETabcdefghijkl",
    "python train.py ghp_S3CRETabcdefghijklmnopq eyJS3CRET.S3CRETabcdefghijk api_org_S3CRETabcdefghijk",
    "bash -c 'wandb login S3CRETa5b5c5d5e5f5a5b5c5d5e5f5a5b5c5d5e5 && python train.py'",
    "wandb login S3CRETa5b5c5d5e5f5a5b5c5d5e5f5a5b5c5d5e5 train.py",
]
SHORT = [
    "python train.py -p S3CRET --lr 0.1",
    "python train.py -P S3CRET -p=S3CRET",
    "srun -p gpu python train.py -p S3CRET",
    "bash -c 'mysqldump -pS3CRET db > d.sql; sshpass -p S3CRET ssh h; python train.py -p S3CRET'",
    "bash -c 'docker login -u me -p S3CRET && redis-cli -a S3CRET && python train.py'",
    "mysql -pS3CRET train.py",
]
CODE = [
    """python -c 'import os; os.environ["HF_TOKEN"] = "S3CRET"; import train.py'""",
    """python -c "os.environ['HF_TOKEN']='S3CRET'; cfg['db']['password'] = 'S3CRET'  # train.py" """,
    """python -c 'os.environ.setdefault("HF_TOKEN", "S3CRET"); os.putenv("A_TOKEN", "S3CRET") # train.py'""",
    """python -c 'setattr(c, "password", "S3CRET"); login(token=b"S3CRET", lr=1) # train.py'""",
    """python -c 'os.environ.update({"HF_TOKEN": "S3CRET"}); d = dict(password=r"S3CRET") # train.py'""",
    """python -c 'password: str = "S3CRET"; token: str | None = ("S3CRET" "S3CRET") # train.py'""",
    """python -c '(password := "S3CRET"); api_key += "S3CRET" + "S3CRET"; p = {"pwd" : "S3CRET"} # train.py'""",
    '''python -c 'password = """S3CRET"""; token = "a\\"S3CRET" # train.py' ''',
    """python -c 'r.get(u, auth=("me", "S3CRET")); r.get(u, HTTPBasicAuth("me", "S3CRET")) # train.py'""",
    """python -c 's.login("me", "S3CRET"); wandb.login(key="5S3CRET0a1b2c3d4e5f") # train.py'""",
    """python -c 'keyring.set_password("service", "me", "S3CRET"); set_token("S3CRET") # train.py'""",
    """python -c 'main(["--password", "S3CRET", "token=S3CRET"]) # train.py'""",
    """python -c '# train.py
password = "S3CRET"
'""",
    """python -c 'train.py; password = "S3CRET that was cut"""[:-1] + "'",
]


@pytest.mark.parametrize("command", NAMED + HEADERS + PLACES + LOOKS + SHORT + CODE)
def test_secrets_are_masked(command: str) -> None:
    parts = shlex.split(command)
    shown = masking.masked_command(parts)
    assert SECRET not in shlex.join(shown)
    assert masking.MASKED in shlex.join(shown)
    assert len(shown) == len(parts)
    assert masking.masked_command(shown) == shown
    assert "train.py" in shlex.join(shown)
    assert SECRET not in masking.masked(f"train.py: error: unrecognized arguments: {command}")


@pytest.mark.parametrize(
    "command",
    [
        "python train.py --tokenizer gpt2 --max-tokens 512 --pad-token '<pad>' --key 7 --num_tokens=5",
        "python train.py --key image --user me --key=a/long/file/of/keys.h5 --author a:b",
        "env PWD=/home/me OMP_NUM_THREADS=2 python -m train --author me --passes 3 --compass north",
        "python train.py --monkey 3 --data https://host:8080/a/b?x=1 s3://bucket/key --password-file /run/p",
        "torchrun --rdzv-endpoint=host:29400 train.py lr=0.1 'a: b'",
        "python train.py -p 8080 -p 0.5 -p 1e-3 -p 8080:80/tcp -p out/run -p bf16 -p train -p lr=0.1 -P cfg.yaml",
        "srun -p gpu-long -n 4 python train.py -pretrained -print0",
        "bash -c 'mkdir -p checkpoints && cp -p old new && docker run -p 80:80 -e HF_TOKEN image python train.py'",
        "pytest -p no:cacheprovider train.py --url http://host:8080/a@2x.png",
        "python -m pytest -p xdist train.py",
        "python train.py --stop-token END --use_auth_token True --use-auth-token=false token=None",
        "python train.py --cookies cookies.txt --credentials key.json",
        "python train.py --task token classification --fields username password email --split-by token",
        "python train.py --hook wandb --webhook-port 80 --code imagenet1k_v2_resized --key imagenet1k_v2",
        "python train.py https://github.com/me/webhooks-demo/archive/3f9a8b7c6d5e4f3a2b1c.zip /data/key/imagenet-train",
        "python train.py github://org:repo@main/data --model sk-learn-classifier hf_cache_of_2024_v2",
        "python train.py --commit 3f9a8b7c6d5e4f3a2b1c ASIA-dataset-2023.tar pypi-mirror-of-2024.tar",
        "python train.py basic augmentation --session 2 --sid 3 --code fast",
        "python -c 'for token in tokens: print(token, secret_share)'",
    ],
)
def test_what_is_no_secret_stays(command: str) -> None:
    assert masking.masked_command(shlex.split(command)) == tuple(shlex.split(command))


def test_a_token_of_letters_alone_is_one() -> None:
    """As Hugging Face's are."""
    token = f"hf_{'AbCdEfGh' * 4}iJ"
    assert masking.masked(f"python train.py {token}") == "python train.py ***"


def test_what_is_beside_a_secret_stays() -> None:
    """A reader of a run needs the rest of its command."""
    shown = masking.masked_command(
        shlex.split(
            'python -c \'import os; os.environ["HF_TOKEN"] = "S3CRET"; train(token=os.environ["HF_TOKEN"], lr=0.1)\''
            " --webhook https://hooks.slack.com/services/T0/B0/S3CRET --set password S3CRET --lr 0.1"
        )
    )
    assert shown == (
        "python",
        "-c",
        'import os; os.environ["HF_TOKEN"] = "***"; train(token=***, lr=0.1)',
        "--webhook",
        "https://hooks.slack.com/***",
        "--set",
        "password",
        "***",
        "--lr",
        "0.1",
    )
    joined = "bash -c 'export TOKEN=S3CRET' --lr 0.1 '2 words'"
    assert masking.masked(joined) == "bash -c 'export TOKEN=***' --lr 0.1 '2 words'"


@pytest.mark.parametrize(
    "unit", ["a-", "-a ", "token ", "https://h/", "/hooks", "1", "--set password ", "(", "\\"]
)
def test_a_long_text_takes_no_longer_than_its_length(unit: str) -> None:
    """A search from each of its letters would take minutes."""
    text = unit * 5_000
    assert masking.masked(f"{text}!").startswith(unit)
    assert len(masking.masked_command(["python", text])) == 2
