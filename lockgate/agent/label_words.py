# SPDX-License-Identifier: Apache-2.0
"""The words by which a question shows, without any model, that it is about the user's account or about the editor.

Decides by words alone, in English, Spanish and German, and rather too seldom than too often: whoever is not found here
is asked about by the layers that follow. Refuses to know labels, and what becomes of the finding.
"""

import re

# The only prefix that the engine registered; another platform's would stand beside it.
PLATFORM_PREFIXES = ("you are a direct and concise assistant",)

_CODE = re.compile(
    r"""\b(?:
    function|script|code|snippet|class|method|program|regex|unit\stest|decorator|middleware|component|hook
    |funci[oó]n|c[oó]digo|clase|m[eé]todo|programa|componente
    |funktion|skript|klasse|methode|programm|quelltext|komponente
    )s?\b""",
    re.IGNORECASE | re.VERBOSE,
)

_ENGLISH = r"""
    \b(?:my|our|(?:this|the|my|our)\saccount(?:'s|’s)?|account)\s(?:(?:current|remaining|overall|total|monthly|weekly
        |daily|yearly|annual|last|latest|next|previous|open|unpaid|api|token|request|rate|storage|credit|account|usage
        |project|organi[sz]ation|team|month(?:'s|’s)?|billing)\s){0,3}
        (?:usage(?!\sof\s(?!my|our|the\s(?:api|platform|account|service)))
        |quotas?|credits?|limits?|allowance|invoices?|bill|billing|balance|subscription|consumption|spending|metrics
        |usage\slimits?)\b
    |\b(?:quota|usage|billing|consumption|credits?|spending|metrics|limits?)\s(?:of|for|on|in)\s(?:my|our|this)\s
        (?:own\s)?(?:account|organi[sz]ation|project|subscription|team|plan)\b
    |\bhow\s(?:many|much)\s(?:of\s)?(?:(?:my|our|the|api|free|input|output|monthly|more)\s){0,3}
        (?:tokens?|requests?|calls|credits?|quota|storage|allowance|money|budget)\s
        (?:(?:do|did|have|can|are|is|am|has|will)\s)?(?:(?:i|we)\b|left\b|remaining\b|remain\b)
    |\bhow\s(?:many|much)\s(?:do|have|did|will|are)\s(?:i|we)\s(?:being\s)?
        (?:owe|spent|spend|pay|charged|used\sup|been\s(?:billed|charged))\b
    |\b(?:which|what)\s(?:billing\s|pricing\s|subscription\s)?plan\s(?:am\si|are\swe|is\smy\saccount)\b
    |\b(?:percent|percentage|share|%)\s(?:of\s)?(?:(?:my|our|your|the|monthly|daily)\s){1,3}
        (?:quota|allowance|credits?|plan|subscription|usage|limit|account)\b
    |\b\d{1,3}(?:[.,]\d+)?\s?%\s(?:used\s)?(?:of\s)?(?:(?:my|our|your|the\saccount'?s?|the)\s){1,2}
        (?:(?:monthly|daily|api|token|storage|request)\s){0,2}(?:quota|allowance|credits?|plan|usage|limit)\b
    |\b(?:account|quota|plan|api|token|storage|credit)\susage\s(?:(?:is|was|at|of|stands|percentage)\b|:)
    |\b(?:am\si|are\swe|i\sam|i'm|we\sare|i\swas|was\si|were\swe|we\swere)\s
        (?:being\s|over\s|near\s|close\sto\s|above\s){0,2}(?:billed|charged|(?:my|our|the)\s(?:(?:monthly|daily|usage|api)\s)?(?:quota|limit|allowance))\b
    |\busage\spercentages?\b
    |\b\d{1,3}(?:[.,]\d+)?\s?%\s(?:of\s(?:its|their|the|my|our|your)\s)?(?:usage|quota|credits?|allowance)\b
    |\b(?:usage|quota|credits?|allowance)\s?(?::|=|is|at|of)\s?\d{1,3}(?:[.,]\d+)?\s?%
    |\bquota\susage\b|\bhow\smuch\s(?:quota|allowance)\b
    |\b(?:percent|percentage|share)\sof\s(?:my|our)\s(?:tokens|requests|credits|calls|storage)\b
    |\b(?:calls|requests|tokens|credits)\sused\s?:?\s?\d
    |\b(?:did|have|do|will)\s(?:i|we)\s(?:exceed(?:ed)?|hit|reach(?:ed)?)\s(?:my|our|the)\s
        (?:(?:monthly|daily|usage|api)\s)?(?:plan|quota|allowance)\b
    |\A\W*(?:billing|quota|invoices?)\W*\Z
"""
_SPANISH = r"""
    \b(?:mis?|nuestr[oa]s?|(?:de|en)\s(?:la|mi|esta)\scuenta)\s(?:(?:propi[oa]|[uú]ltim[oa]|pr[oó]xim[oa]|actual)s?\s)?
        (?:cuotas?|consumo|uso|facturas?|facturaci[oó]n|cr[eé]ditos?|saldo|l[ií]mites?|suscripci[oó]n|gastos?
        |m[eé]tricas)\b
    |\b(?:cuotas?|consumo|uso|factura(?:ci[oó]n|s)?|cr[eé]ditos?|saldo|l[ií]mites?|suscripci[oó]n|gastos?|m[eé]tricas)\s
        (?:\w+\s)?(?:de|en)\s(?:mi|nuestra|la|esta)\s(?:cuenta|suscripci[oó]n|organizaci[oó]n)\b
    |\bcu[aá]nt[oa]s?\s(?:de\s)?(?:(?:mi|la|los|mis)\s)?
        (?:tokens?|peticiones|solicitudes|llamadas|cr[eé]ditos?|cuota|saldo|espacio|almacenamiento|dinero)\s
        (?:me\s|nos\s)?(?:quedan?|he|hemos|llevo|llevamos|gast[eé]|us[eé]|tengo|tenemos|consum[ií])\b
    |\bcu[aá]nto\s(?:he|hemos|llevo|llevamos)\s(?:gastado|consumido|pagado)\b
    |\bcu[aá]nto\s(?:(?:me|nos)\s(?:van\sa\scobrar|cobran|cobraron|cobrar[eé]is|han\scobrado|toca\spagar)|debo)\b
    |\b(?:porcentaje|%|por\sciento)\s(?:de|del)\s(?:(?:mi|la|el|nuestra|nuestro)\s)?
        (?:cuota|uso|consumo|plan|l[ií]mite)\b
    |\bqu[eé]\splan\s(?:tengo|tenemos)\b
"""
_GERMAN = r"""
    \b(?:mein|unser|dein)(?:e[mnrs]?|es)?\s
        (?:(?:aktuell|verbleibend|monatlich|letzt|n[aä]chst|offen|bisherig|t[aä]glich)e[mnrs]?\s){0,2}
        (?:[\w-]*(?:kontingent|verbrauch|guthaben|rechnung|abrechnung|limit|quote|abo|credits)(?:e[ns]?|s|en)?
        |[\w-]*nutzung(?:s\w+)?|abonnement|tarif|kontostand|kosten)\b
    |\b(?:kontingent|verbrauch|guthaben|rechnung(?:en)?|abrechnung|limits?|nutzung|kosten|kennzahlen)\s
        (?:f[uü]r|von|in|auf|mit)?\s?(?:mein|unser|dies)e[mnrs]?\s(?:konto|account|organisation|team|projekt|abo)s?\b
    |\bwie\s?viele?s?\s(?:von\s)?(?:mein\w*\s)?(?:freie\s|api-)?
        (?:tokens?|anfragen|aufrufe|requests|calls|credits|guthaben|kontingent|speicher|geld)\s
        (?:habe?n?|bleib\w*|sind|ist|steh\w*|darf|d[uü]rfen)\s(?:(?:ich|wir|mir|uns)\b|(?:noch\s)?[uü]brig\b|noch\b)
    |\bwie\s?viel\s(?:habe?n?\s(?:ich|wir)|muss\sich)\s(?:\w+\s){0,4}(?:ausgegeben|verbraucht|bezahlt|zahlen|bezahlen)\b
    |\b(?:prozent|%)\s(?:mein\w*|unser\w*|des|vom)\s(?:[\w-]*(?:kontingent|limit|guthaben|verbrauch)\w*)
    |\bwelche[nrs]?\s(?:tarif|plan|abo)\s(?:habe|haben|nutze|nutzen)\s(?:ich|wir)\b
"""
_ACCOUNT = re.compile(f"(?:{_ENGLISH}|{_SPANISH}|{_GERMAN})", re.IGNORECASE | re.VERBOSE)

_EDITOR = re.compile(
    r"""\b(?:
    this|these|selected|selection|highlighted|marked\s(?:code|lines?|text|part)
    |(?:my|our)\s(?:\w+\s)?(?:code|function|script|class|method|file|query|program|snippet|test|tests|loop|module|config
        |configuration|implementation|component|regex|selection|editor|document|buffer)
    |the\s(?:(?:open|opened|current|active|whole|entire|attached)\s)?(?:file|editor|snippet|buffer)
    |the\s(?:code|function|lines?|part)\s(?:here|above|below|i\s(?:sent|pasted|have|selected|attached|wrote))
    |(?:open|current|active)\s(?:file|document|editor|tab)|in\sthe\seditor
    |est[oe]|est[oa]s|esta|seleccionad[oa]s?|selecci[oó]n|resaltad[oa]s?|marcad[oa]s
    |(?:mi|nuestro|nuestra)\s(?:c[oó]digo|funci[oó]n|script|clase|m[eé]todo|archivo|fichero|consulta|programa|prueba
        |bucle|m[oó]dulo|configuraci[oó]n|implementaci[oó]n|editor)
    |(?:el|del|al)\s(?:archivo|fichero|editor)|el\sc[oó]digo\s(?:de\saqu[ií]|de\sarriba|de\sabajo|abierto|actual)
    |dies(?:e[mnrs]?)?|das\shier|markiert(?:e[mnrs]?)?|ausgew[aä]hlt(?:e[mnrs]?)?|selektiert(?:e[mnrs]?)?|auswahl
    |(?:mein|unser)(?:e[mnrs]?)?\s(?:\w+\s)?(?:code|funktion|skript|klasse|methode|datei|abfrage|programm|test|tests
        |schleife|modul|konfiguration|implementierung|komponente|editor|quelltext)s?
    |(?:die|der|dieser)\s(?:(?:offene|offenen|aktuelle|aktuellen|ganze|ganzen)\s)?datei|im\seditor
    |(?:der|den|dem)\scode\s(?:hier|oben|unten)|(?:was|wo)\s(?:ist|l[aä]uft|geht)\shier
    )\b""",
    re.IGNORECASE | re.VERBOSE,
)


def has_platform_prefix(text: str) -> bool:
    """Whether the text holds the opening of a platform's own prompt, however it is spaced."""
    flat = " ".join(text.split()).casefold()
    return any(prefix in flat for prefix in PLATFORM_PREFIXES)


def is_about_account(text: str) -> bool:
    """Whether the text names figures of the user's own account: usage, quota, limits, bills; code is not."""
    flat = " ".join(text.split())
    return bool(_ACCOUNT.search(flat)) and not _CODE.search(flat)


def points_at_editor(text: str) -> bool:
    """Whether the text points at what the user has before the eyes."""
    return bool(_EDITOR.search(" ".join(text.split())))
