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
    ("jwt", jwt({"alg": "HS256", "typ": "JWT"})),
]
IN_CONTEXT = [
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


def test_every_rule_has_a_case() -> None:
    tried = {rule for rule, _ in POSITIVE} | {rule for rule, _, _ in IN_CONTEXT} | {"private-key"}
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
]


@pytest.mark.parametrize("text", NEGATIVE)
def test_what_only_looks_like_a_secret_is_left_alone(text: str) -> None:
    assert scan(text) == []


def test_the_more_telling_rule_wins_where_two_see_the_same_token() -> None:
    token = "sk-" + "ant-api03-" + noise(40)
    assert [hit.detection for hit in scan(f"api_key = {token}")] == ["AnthropicKey"]


def test_the_detector_takes_no_parameters() -> None:
    message = "unknown parameter `x`, this detector takes none"
    with pytest.raises(InvalidRequest) as caught:
        asyncio.run(_open({}, {"x": 1}))
    assert caught.value.message == message
    with pytest.raises(ConfigError) as at_start:
        asyncio.run(_open({"x": 1}, {}))
    assert str(at_start.value) == f"options: x: {message}"
