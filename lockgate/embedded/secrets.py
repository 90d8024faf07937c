# SPDX-License-Identifier: Apache-2.0
"""Credentials that should not leave: tokens with a known prefix, keys, passwords in URLs and assignments.

This module decides what looks enough like a secret to be reported: a form, and for the forms that prose may
imitate the disorder of the characters. It refuses to know whether a credential is still valid.
"""

import base64
import binascii
import json
import math
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from lockgate.core.values import Detection
from lockgate.embedded.scanning import (
    LOOKBEHIND_CHARS,
    Found,
    Params,
    PatternTable,
    Scan,
    ScanningDetector,
    detections,
    flatten,
    keep_best,
)

# --- Checks ---------------------------------------------------------------------------------------------------

_PLACEHOLDER = re.compile(
    r"(?i)^your|(?<![a-z])(?:my|some|example|sample|dummy|change[-_]?me|redacted|placeholder|insert|todo)(?![a-z])"
    r"|x{3}|\*{3}|\.{3}|^<|\$\{|\{\{|%\(|^\$[a-z_]"
)
_WORD_LIKE = re.compile(r"[A-Za-z]+(?:[-_][A-Za-z]+)*\d{0,2}")
_PROGRAM = re.compile(r"[A-Za-z_]\w*(?:(?:\.|->|::)[A-Za-z_]\w*)+|[\w.]*[(\[].*|[$%@{<&*].*|/[\w./-]*|\w+://.*")


def _entropy(value: str) -> float:
    """Bits per character of the value's own distribution (Shannon)."""
    size = len(value)
    return -sum(count / size * math.log2(count / size) for count in Counter(value).values())


def _is_any(_value: str) -> bool:
    return True


def _is_random(value: str) -> bool:
    """Digits and letters in disorder: not words joined by dashes, not a row of the same letter."""
    has_both = any(char.isdigit() for char in value) and any(char.isalpha() for char in value)
    return has_both and _entropy(value) >= 3.0 and not _WORD_LIKE.fullmatch(value) and not _PLACEHOLDER.search(value)


def _is_token(value: str) -> bool:
    """A token with its prefix: anything but a row of `x`."""
    return _entropy(value) >= 3.0


def _is_password(value: str) -> bool:
    """What people choose: at least two kinds of characters, and not a piece of a program."""
    if _PLACEHOLDER.search(value) or _PROGRAM.fullmatch(value):
        return False
    kinds = (str.isdigit, str.islower, str.isupper, lambda char: not char.isalnum())
    return sum(any(map(kind, value)) for kind in kinds) >= 2 and _entropy(value) >= 2.0 and not value.isalpha()


def _is_url_password(value: str) -> bool:
    return not _PLACEHOLDER.search(value) and value.lower() not in {"password", "pass", "pwd", "secret", "token"}


def _is_jwt(value: str) -> bool:
    """The first part is a JSON object that names an algorithm."""
    head = value.split(".", 1)[0]
    try:
        header = json.loads(base64.urlsafe_b64decode(head + "=" * (-len(head) % 4)))
    except (ValueError, binascii.Error, RecursionError):
        return False
    return isinstance(header, dict) and "alg" in header


# --- The table ------------------------------------------------------------------------------------------------


class SecretForm(NamedTuple):
    """One rule: its name, what it finds, how it looks (group 1 is the secret, else all), what proves it."""

    rule: str
    detection: str
    pattern: str
    check: Callable[[str], bool] = _is_token
    score: float = 0.95


_B64URL = r"[A-Za-z0-9_-]"
_BREAK = r"(?:\s|\\[nr]){0,4}"
_PEM_NAME = r"(?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?"
_PEM_BODY = rf"(?:{_BREAK}[A-Za-z0-9+/=]{{24,}})*"
_PEM_END = rf"(?:{_BREAK}[A-Za-z0-9+/=]{{1,64}})?{_BREAK}-----END {_PEM_NAME}-----"
_ASSIGN = r"""["']?\]?\s{0,3}(?:=>|:=|=|:)\s{0,3}(?:[bru]{1,2}["']|["'`])?"""
_API_NAMES = (
    r"api[_-]?key|apikey|access[_-]?key|secret[_-]?key|access[_-]?token|auth[_-]?token|refresh[_-]?token"
    r"|client[_-]?secret|private[_-]?key|encryption[_-]?key|signing[_-]?key|app[_-]?secret|secret|token|credential"
)
_LOGIN_NAMES = r"password|passwd|passphrase|pwd|pass|contrase\xf1a|passwort|kennwort|clave"

FORMS = (
    SecretForm("aws-access-key-id", "AwsAccessKey", r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}\b"),
    SecretForm("aws-secret-key", "AwsSecretKey", rf"(?i)aws_?secret_?(?:access_?)?key{_ASSIGN}([A-Za-z0-9/+]{{40}})\b"),
    SecretForm("github-token", "GitHubToken", r"\bgh[pousr]_[A-Za-z0-9]{36,}\b"),
    SecretForm("github-pat", "GitHubToken", r"\bgithub_pat_[A-Za-z0-9_]{22,}\b"),
    SecretForm("gitlab-token", "GitLabToken", rf"\bgl(?:pat|dt|rt|ptt|oas|cbt|soat|ft|imt|agent)-{_B64URL}{{20,}}"),
    SecretForm("slack-token", "SlackToken", r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}"),
    SecretForm("slack-app-token", "SlackToken", r"\bxapp-\d-[A-Z0-9]+-\d+-[a-z0-9]{16,}\b"),
    SecretForm("slack-webhook", "SlackWebhook", r"\bhooks\.slack\.com/(?:services|workflows)/[A-Za-z0-9/]{20,}"),
    SecretForm("stripe-key", "StripeKey", r"\b(?:sk|rk)_(?:live|test)_[A-Za-z0-9]{16,}\b"),
    SecretForm("stripe-webhook-secret", "StripeKey", r"\bwhsec_[A-Za-z0-9+/=]{24,}"),
    SecretForm("google-api-key", "GoogleApiKey", rf"\bAIza{_B64URL}{{35}}"),
    SecretForm("google-oauth-secret", "GoogleOAuthSecret", rf"\bGOCSPX-{_B64URL}{{28}}"),
    SecretForm("google-oauth-token", "GoogleOAuthToken", rf"\bya29\.{_B64URL}{{20,}}"),
    SecretForm("anthropic-key", "AnthropicKey", rf"\bsk-ant-{_B64URL}{{20,}}", _is_random),
    SecretForm("openai-key", "OpenAIKey", rf"\bsk-(?:(?:proj|svcacct|admin|or-v1)-)?{_B64URL}{{20,}}", _is_random, 0.9),
    SecretForm("groq-key", "GroqKey", r"\bgsk_[A-Za-z0-9]{40,}\b"),
    SecretForm("huggingface-token", "HuggingFaceToken", r"\bhf_[A-Za-z0-9]{30,}\b"),
    SecretForm("npm-token", "NpmToken", r"\bnpm_[A-Za-z0-9]{36}\b"),
    SecretForm("pypi-token", "PyPiToken", rf"\bpypi-AgE{_B64URL}{{50,}}"),
    SecretForm("sendgrid-key", "SendGridKey", rf"\bSG\.{_B64URL}{{16,32}}\.{_B64URL}{{32,64}}"),
    SecretForm("twilio-key", "TwilioKey", r"\bSK[0-9a-f]{32}\b"),
    SecretForm("mailgun-key", "MailgunKey", r"\bkey-[0-9a-f]{32}\b"),
    SecretForm("mailchimp-key", "MailchimpKey", r"\b[0-9a-f]{32}-us\d{1,2}\b"),
    SecretForm("telegram-bot-token", "TelegramBotToken", rf"\b\d{{8,10}}:AA{_B64URL}{{33}}"),
    SecretForm("digitalocean-token", "DigitalOceanToken", r"\bdo[opr]_v1_[0-9a-f]{64}\b"),
    SecretForm("databricks-token", "DatabricksToken", r"\bdapi[0-9a-f]{32}\b"),
    SecretForm("shopify-token", "ShopifyToken", r"\bshp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}\b"),
    SecretForm("docker-token", "DockerToken", rf"\bdckr_[po]at_{_B64URL}{{20,}}"),
    SecretForm("vault-token", "VaultToken", rf"\bhv[sbr]\.{_B64URL}{{24,}}"),
    SecretForm("grafana-token", "GrafanaToken", r"\bgl(?:sa|c)_[A-Za-z0-9_=]{30,}"),
    SecretForm("atlassian-token", "AtlassianToken", r"\bATATT3[A-Za-z0-9_=-]{50,}"),
    SecretForm("linear-key", "LinearKey", r"\blin_(?:api|oauth)_[A-Za-z0-9]{32,}\b"),
    SecretForm("notion-token", "NotionToken", r"\bntn_[A-Za-z0-9]{40,}\b"),
    SecretForm("postman-key", "PostmanKey", r"\bPMAK-[0-9a-f]{24}-[0-9a-f]{34}\b"),
    SecretForm("newrelic-key", "NewRelicKey", r"\bNRAK-[A-Z0-9]{27}\b"),
    SecretForm("square-token", "SquareToken", rf"\bsq0(?:atp|csp)-{_B64URL}{{22,}}"),
    SecretForm("age-secret-key", "AgeSecretKey", r"\bAGE-SECRET-KEY-1[A-Z0-9]{58}\b"),
    SecretForm("azure-storage-key", "AzureStorageKey", r"\bAccountKey=([A-Za-z0-9+/]{86}==)"),
    SecretForm("jwt", "JsonWebToken", rf"\beyJ{_B64URL}{{8,}}\.eyJ{_B64URL}{{4,}}\.{_B64URL}{{8,}}", _is_jwt),
    SecretForm(
        "private-key",
        "PrivateKey",
        rf"-----BEGIN {_PEM_NAME}-----{_PEM_BODY}(?:{_PEM_END})?",
        _is_any,
        0.99,
    ),
    SecretForm(
        "url-password",
        "UrlPassword",
        r"""\b[A-Za-z][A-Za-z0-9+.-]{1,20}://[^\s/:@"'<>]{0,64}:([^\s/@"'<>]{3,128})@[^\s/@]""",
        _is_url_password,
        0.9,
    ),
    SecretForm(
        "authorization-header",
        "AuthorizationHeader",
        r"""(?i)\bauthorization["']?\s{0,3}[:=]\s{0,3}["']?(?:bearer|basic|token)\s{1,3}([A-Za-z0-9._~+/-]{12,}={0,2})""",
        _is_token,
        0.9,
    ),
    SecretForm(
        "password-assignment",
        "Password",
        rf"""(?i)(?:\b|_)(?:{_LOGIN_NAMES}){_ASSIGN}([^\s"'`,;<>]{{6,128}})""",
        _is_password,
        0.75,
    ),
    SecretForm(
        "token-assignment",
        "ApiKey",
        rf"""(?i)(?:\b|_)(?:{_API_NAMES}){_ASSIGN}([A-Za-z0-9_.+/=~-]{{12,256}})""",
        _is_random,
        0.7,
    ),
)

# --- The detector ---------------------------------------------------------------------------------------------


class SecretScan:
    """The scan: one set for the whole table, then the forms that occur."""

    def __init__(self) -> None:
        self._table = PatternTable(form.pattern for form in FORMS)

    def __call__(self, text: str) -> list[Detection]:
        page = flatten(text)
        found = [hit for number in self._table.occurring(page) for hit in self._find(number, page)]
        return detections(keep_best(found), text, "secret")

    def may_find(self, text: str) -> bool:
        """Whether any form occurs."""
        return bool(self._table.occurring(flatten(text)))

    def _find(self, number: int, page: bytes) -> Iterator[Found]:
        form = FORMS[number]

        def accept(start: int, end: int) -> bool:
            return form.check(page[start:end].decode("latin-1"))

        for start, end in self._table.spans(number, page, accept, is_bounded=False):
            yield Found(start, end, form.detection, form.score, {"rule": form.rule})


@asynccontextmanager
async def open_secrets_detector(options: Mapping[str, Any]) -> AsyncIterator[ScanningDetector]:
    """Reports credentials. No options."""
    Params.of_options(options, ())
    scan = SecretScan()

    def prepare(_params: Params) -> Scan:
        return scan

    yield ScanningDetector(prepare, (), LOOKBEHIND_CHARS)
