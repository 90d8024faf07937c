# SPDX-License-Identifier: Apache-2.0
"""Credentials: what is found and what only looks like one.

The samples are made at run time from parts, so that no scanner of repositories takes them for real.
"""

import asyncio
import base64
import json
import random
import string
from typing import Any

import pytest

from lockgate.detectors.scans import ScanReading
from lockgate.detectors.secrets.detector import FORMS, open_secrets_detector
from lockgate.errors import ConfigError, InvalidRequest
from lockgate.gate.values import Detection, Excerpt
from tests.waits import assert_linear

ALNUM = string.ascii_letters + string.digits
HEX = string.hexdigits[:16]


def noise(size: int, alphabet: str = ALNUM) -> str:
    """Letters in disorder, the same in every run, with at least one digit."""
    return "7" + "".join(random.Random(size).choices(alphabet, k=size - 1))


def jwt(header: dict[str, str]) -> str:
    parts = (json.dumps(header).encode(), b'{"sub":"1234"}', b"not a real signature")
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)


async def _open(options: dict[str, Any], params: dict[str, Any]) -> ScanReading:
    async with open_secrets_detector(options) as detector:
        return detector.accept(params, ())


READING = asyncio.run(_open({}, {}))


def scan(text: str) -> list[Detection]:
    return asyncio.run(READING.read([Excerpt(text)]))[0]


POSITIVE = [
    ("aws-access-key-id", "AKIA" + noise(16, string.ascii_uppercase)),
    ("github-token", "gh" + "p_" + noise(36)),
    ("github-pat", "github" + "_pat_" + noise(40)),
    ("gitlab-token", "gl" + "pat-" + noise(20)),
    ("slack-token", "xox" + "b-" + noise(24)),
    ("slack-app-token", "xa" + "pp-1-A012-345-" + noise(32, HEX)),
    ("slack-webhook", "hooks.slack" + ".com/services/T0/B0/" + noise(24)),
    ("stripe-key", "sk_" + "live_" + noise(24)),
    ("stripe-webhook-secret", "wh" + "sec_" + noise(32)),
    ("google-api-key", "AI" + "za" + noise(35)),
    ("google-oauth-secret", "GOC" + "SPX-" + noise(28)),
    ("google-oauth-token", "ya" + "29." + noise(40)),
    ("anthropic-key", "sk-" + "ant-api03-" + noise(40)),
    ("openai-key", "sk-" + noise(48)),
    ("openai-key", "sk-" + "proj-" + noise(48)),
    ("groq-key", "gs" + "k_" + noise(52)),
    ("huggingface-token", "h" + "f_" + noise(34)),
    ("npm-token", "np" + "m_" + noise(36)),
    ("pypi-token", "py" + "pi-AgEI" + noise(60)),
    ("sendgrid-key", "S" + "G." + noise(22) + "." + noise(43)),
    ("twilio-key", "S" + "K" + noise(32, HEX)),
    ("mailgun-key", "ke" + "y-" + noise(32, HEX)),
    ("mailchimp-key", noise(32, HEX) + "-us" + "12"),
    ("telegram-bot-token", "123456789" + ":AA" + noise(33)),
    ("digitalocean-token", "do" + "p_v1_" + noise(64, HEX)),
    ("databricks-token", "da" + "pi" + noise(32, HEX)),
    ("shopify-token", "sh" + "pat_" + noise(32, HEX)),
    ("docker-token", "dc" + "kr_pat_" + noise(27)),
    ("vault-token", "hv" + "s." + noise(40)),
    ("grafana-token", "gl" + "sa_" + noise(41)),
    ("atlassian-token", "AT" + "ATT3" + noise(60)),
    ("linear-key", "li" + "n_api_" + noise(40)),
    ("notion-token", "nt" + "n_" + noise(46)),
    ("postman-key", "PM" + "AK-" + noise(24, HEX) + "-" + noise(34, HEX)),
    ("newrelic-key", "NR" + "AK-" + noise(27, string.ascii_uppercase)),
    ("square-token", "sq0" + "atp-" + noise(22)),
    ("age-secret-key", "AGE-SECRET" + "-KEY-1" + noise(58, string.ascii_uppercase)),
    ("sonar-token", "sq" + "p_" + noise(40, HEX)),
    ("sonar-token", "sq" + "u_" + noise(40, HEX)),
    ("sourcegraph-token", "sg" + "p_" + noise(16, HEX) + "_" + noise(40, HEX)),
    ("sourcegraph-token", "sg" + "p_local_" + noise(40, HEX)),
    ("facebook-token", "EA" + "AB" + noise(120)),
    ("huggingface-organisation-token", "api_" + "org_" + "JkqXwbTzRm" * 3 + "pLsV"),
    ("azure-devops-token", noise(76) + "AZ" + "DO" + noise(4)),
    ("aws-bedrock-key", "AB" + "SK" + noise(120)),
    ("discord-webhook", "discord.com" + "/api/webhooks/123456789012345678/" + noise(68)),
    ("service-token", "pp" + "lx-" + noise(48)),
    ("service-token", "ruby" + "gems_" + noise(48, HEX)),
    ("service-token", "dp" + ".pt." + noise(43)),
    ("service-token", "pat-" + "na1-12345678-90ab-cdef-1234-567890abcdef"),
    ("service-token", "xkey" + "sib-" + noise(64, HEX) + "-" + noise(16)),
    ("service-token", "ts" + "key-auth-" + noise(12) + "-" + noise(32)),
    ("service-token", "sn" + "tryu_" + noise(64, HEX)),
    ("jwt", jwt({"alg": "HS256", "typ": "JWT"})),
]
BASIC = base64.b64encode(b"bob:s3cr" + b"3t-9").decode()
IN_CONTEXT = [
    ("aws-secret-key", '"secretAccessKey": "{}"', noise(40)),
    ("aws-secret-key", "aws-secret-key: {}", noise(40)),
    ("azure-storage-key", "AZURE_STORAGE_KEY={}", noise(86) + "=="),
    ("azure-shared-access-key", "Endpoint=sb://x;SharedAccessKeyName=n;SharedAccessKey={}", noise(43) + "="),
    ("azure-shared-access-signature", "https://x.blob.core.windows.net/c?sv=1&sig={}", noise(43) + "%3D"),
    ("azure-client-secret", "the value is '{}'", "a1b8Q" + "~" + noise(34)),
    ("sonar-assignment", "sonar.login={}", noise(40, HEX)),
    ("facebook-app-token", "123456789012345|{}", noise(27)),
    ("facebook-secret", "FACEBOOK_APP_SECRET={}", noise(32, HEX)),
    ("docker-auth", '{{"auths": {{"ghcr.io": {{"auth": "{}"}}}}}}', BASIC),
    ("npm-auth", "//registry.example.org/:_auth={}", BASIC),
    ("curl-user", "curl -u bob:{} https://api.example.com", "s3cr" + "3t-9"),
    ("curl-user", "curl -sSLu 'bob:{}' https://api.example.com", "s3cr" + "3t-9"),
    ("curl-user", "curl -X POST \\\n  --user bob:{} https://api.example.com", "s3cr" + "3t-9"),
    ("aws-secret-key", "aws_secret_access_key = {}", noise(40)),
    ("azure-storage-key", "AccountName=x;AccountKey={};EndpointSuffix=y", noise(86) + "=="),
    ("url-password", "postgres://bob:{}@db.example.com/app", "s3cr" + "3t"),
    ("url-password", "redis://:{}@cache:6379", noise(12)),
    ("authorization-header", "Authorization: Bearer {}", noise(32)),
    ("password-assignment", "password = '{}'", "hunter" + "22!"),
    ("password-assignment", "DB_PASSWORD={}", "Tr0ub4dor" + "&3"),
    ("password-assignment", "Die Zugangsdaten: Passwort: {}", "Sommer" + "2024!"),
    ("password-assignment", "la contraseña: {} no la compartas", "Verano" + "#2024"),
    ("password-assignment", '{{"pwd": "{}"}}', "x9$kQ" + "1zz"),
    ("token-assignment", "api_key: {}", noise(32)),
    ("token-assignment", 'request.Header.Set("X-Api-Key", "{}")', noise(32)),
    ("token-assignment", "const paymentsApiKey = '{}'", noise(32)),
    ("token-assignment", '"webhookSecret": "{}"', noise(32)),
    ("token-assignment", "client.setAccessToken('{}')", noise(40)),
    ("authorization-header", 'headers.put("Authorization", "Bearer {}")', noise(44)),
    ("token-assignment", 'client_secret = "{}"', noise(40)),
    ("token-assignment", "export MY_SERVICE_TOKEN={}", noise(24)),
]


@pytest.mark.parametrize(("rule", "token"), POSITIVE)
def test_a_token_is_found_by_its_prefix(rule: str, token: str) -> None:
    text = f"é😀 use {token} for now"
    (hit,) = scan(text)
    assert hit.metadata == {"rule": rule}
    assert (hit.text, hit.detection_type) == (token, "secret")
    assert text[hit.start : hit.end] == token


@pytest.mark.parametrize(("rule", "template", "value"), IN_CONTEXT)
def test_a_secret_is_found_by_what_stands_around_it(rule: str, template: str, value: str) -> None:
    (hit,) = scan(template.format(value))
    assert (hit.metadata, hit.text) == ({"rule": rule}, value)


def test_a_private_key_is_reported_with_its_body() -> None:
    begin, end = "-----BEGIN RSA PRIVATE " + "KEY-----", "-----END RSA PRIVATE " + "KEY-----"
    block = "\n".join([begin, noise(64), noise(64), noise(20) + "==", end])
    assert [hit.text for hit in scan(f"key:\n{block}\nthanks")] == [block]
    assert [hit.text for hit in scan(f"{begin} is how it begins")] == [begin]


def test_the_secret_beside_an_aws_key_is_found_too() -> None:
    key, secret = "AKIA" + "Q" + noise(15, string.ascii_uppercase).lstrip("7") + "Z", noise(38) + "/+"
    for text in (f"{key}:{secret}", f"{key}\n{secret}\n", f'["{key}", "{secret}"]'):
        assert [(hit.text, hit.metadata) for hit in scan(text)] == [
            (key, {"rule": "aws-access-key-id"}),
            (secret, {"rule": "aws-key-pair"}),
        ]


def test_every_rule_has_a_case() -> None:
    tried = {rule for rule, _ in POSITIVE} | {rule for rule, _, _ in IN_CONTEXT} | {"private-key", "aws-key-pair"}
    assert tried == {form.rule for form in FORMS}


NEGATIVE = [
    "",
    "Nothing secret here.",
    "Please choose a password: at least eight characters.",
    "password = get_password()",
    'password = os.environ["DB_PASSWORD"]',
    "password: string",
    "password=changeme123",
    "password = ${DB_PASSWORD}",
    "password: <your-password-1>",
    "password = ********",
    "self.password = self.config.password1",
    "The password: correct horse battery staple",
    "Passwort: siehe Handbuch",
    "la clave: es la paciencia",
    "token: str = None",
    "api_key = YOUR_API_KEY_1234",
    "api_key: xxxxxxxxxxxxxxxxxxxx1",
    "secret: the-quick-brown-fox-jumps",
    "token = document.body.firstChild",
    "access_token=example1234567890abc",
    "sk-learn-is-a-python-library-for-learning",
    "sk-" + "x" * 40,
    "gh" + "p_short",
    "gh" + "p_" + "a" * 36,
    "AKIA is a prefix",
    "AI" + "za is a prefix too",
    "eyJhbGciOi is the start of a token",
    "eyJ" + "a" * 20 + ".eyJ" + "b" * 20 + "." + "c" * 20,
    jwt({"typ": "no algorithm"}),
    "https://example.com/path:with@sign",
    "https://user:password@example.com",
    "ftp://user@example.com",
    "http://localhost:8080/@scope/pkg",
    "d41d8cd98f00b204e9800998ecf8427e",
    "123e4567-e89b-12d3-a456-426614174000",
    "-----BEGIN " + "CERTIFICATE-----",
    "-----BEGIN " + "PUBLIC KEY-----",
    "compass: north, bypass: 1234567",
    "npm_config_registry=https://registry.example.com",
    "Authorization: Bearer <token>",
    "hooks.slack.com is a host",
    "curl -u bob https://api.example.com",
    "curl -u user:password https://api.example.com",
    "curl -u $API_USER:$API_PASSWORD https://api.example.com",
    "curl https://api.example.com && docker run -u 1000:1000 image",
    'curl -u "<user>:<password>" https://api.example.com',
    '{"auth": "required"}',
    '{"auth": "' + base64.b64encode(b"no colon in here").decode() + '"}',
    '{"auth": "' + base64.b64encode(b"user:password").decode() + '"}',
    "secret_access_key: see the vault",
    "AKIA... and the secret key",
    "https://example.com/?sig=short",
    "a pattern of 512 letters: sgp_abc, sqp_1, EAAB, api_org_x",
    "123456789012345|header|other column of a table",
    "sonar.login=admin",
    '"nextPageToken": "CAoQAA7pageTokenValue12"',
    'settings.get("api_key", "environment")',
    'parser.add("secret", "the-name-of-a-secret")',
    "getToken('verification')",
    "tertiarySecretaryName = 'abc123def456ghi789'",
    "def connect(user, passwd=None):",
    "commit 3f786850e387550fdab836ed7e6dc881de23001b of sonar",
]


@pytest.mark.parametrize("text", NEGATIVE)
def test_what_only_looks_like_a_secret_is_left_alone(text: str) -> None:
    assert scan(text) == []


def test_a_key_that_documentation_prints_is_no_secret_but_one_like_it_is() -> None:
    emulator = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/" + "KBHBeksoGMGw=="
    assert scan(f"AccountName=devstoreaccount1;AccountKey={emulator};") == []
    assert [hit.text for hit in scan(f"AccountName=me;AccountKey={emulator.swapcase()};")] == [emulator.swapcase()]
    assert scan("stripe.api_key = 'sk_" + "test_4eC39HqLyjWDarjtT1zdp7dc'") == []


def test_the_more_telling_rule_wins_where_two_see_the_same_token() -> None:
    token = "sk-" + "ant-api03-" + noise(40)
    assert [hit.detection for hit in scan(f"api_key = {token}")] == ["AnthropicKey"]


@pytest.mark.parametrize(
    "unit", ["curl ", "curl -u a:", "AKIA", "sig=", '"auth": "', "secret_access_key: ", "EAAB", "1|", "sha256~"]
)
def test_the_work_grows_with_the_text_only(unit: str) -> None:
    assert_linear(lambda size: READING.scan(unit * (size // len(unit))), 30_000)


def test_the_detector_takes_no_parameters() -> None:
    message = "unknown parameter `x`, this detector takes none"
    with pytest.raises(InvalidRequest) as caught:
        asyncio.run(_open({}, {"x": 1}))
    assert caught.value.message == message
    with pytest.raises(ConfigError) as at_start:
        asyncio.run(_open({"x": 1}, {}))
    assert str(at_start.value) == f"options: x: {message}"
