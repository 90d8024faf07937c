# SPDX-License-Identifier: Apache-2.0
"""Plain overrides: the phrases by which injected instructions announce themselves in English, Spanish and German.

This module decides which phrases count and how sure each is. They are written over plain text (small ASCII letters,
lockgate.embedded.plain_text). It refuses to know who wrote a text and why: a manual that quotes such a phrase meets the
rule too, so what is often written in good faith has a low score or no rule.
"""

from lockgate.embedded.plain_text import Rule

OVERRIDE, REVEAL, ROLE, FORGERY = "override", "reveal", "role", "forgery"
ADDRESS, SECRECY, OBEY, SEND = "address", "secrecy", "obey", "send"
_SURE, _LIKELY, _WEAK = 0.95, 0.85, 0.6


def _upto(count: int) -> str:
    """At most so many words between two others."""
    return rf"(?:\W+\w+){{0,{count}}}?\W+"


def _build(name: str, label: str, score: float, *alternatives: str) -> Rule:
    return Rule(name, label, score, "|".join(rf"\b(?:{one})" for one in alternatives))


_EN_DROP = (
    r"(?:ignore|disregard|forget|override|bypass|discard|neglect|dismiss|set\W+aside|pay\W+no\W+attention\W+to"
    r"|do\W+not\W+(?:follow|obey)|don'?t\W+(?:follow|obey)|stop\W+(?:following|obeying))"
)
_EN_EARLIER = (
    r"(?:previous|prior|above|preceding|earlier|foregoing|original|initial|existing|system|your|every(?:thing)?"
    r"|all(?:\W+of)?(?:\W+(?:the|your|those|these|my))?)"
)
_EN_ORDERS = (
    r"(?:instructions?|prompts?|rules|guidelines|directions|directives|commands|constraints|restrictions|guardrails"
    r"|programming|safety\W+\w+)"
)
_EN_HIDDEN = (
    r"(?:system\W+(?:prompt|message|instructions?)|(?:hidden|initial|secret|original|internal|developer|pre)\W?"
    r"(?:prompt|message|instructions?|rules))"
)
_EN_FREE = (
    r"(?:no|without(?:\W+any)?|free\W+(?:of|from)(?:\W+(?:all|any))?)\W+(?:\w+\W+){0,2}?"
    r"(?:restrictions|rules|limits|limitations|filters?|guidelines|censorship|guardrails|ethics|morals)"
)

_ENGLISH = (
    _build(
        "en_override",
        OVERRIDE,
        _SURE,
        rf"{_EN_DROP}{_upto(3)}{_EN_EARLIER}{_upto(3)}{_EN_ORDERS}\b",
        rf"{_EN_DROP}{_upto(2)}(?:instructions?|prompts?|rules|guidelines)\W+(?:above|before|given|so\W+far)\b",
        r"(?:ignore|disregard|forget)\W+(?:everything|all|anything)\W+(?:(?:that|which|you\W+\w+(?:\W+\w+)?|i\W+\w+)\W+)?"
        r"(?:above|before|previous\w*|prior|so\W+far|said|told|been\W+told|were\W+told|learned)\b",
        r"your\W+(?:new|real|true|actual|updated|only)\W+(?:instructions?|task|objective|directive|prompt|orders)"
        r"\W+(?:are|is|now|will)\b",
    ),
    _build(
        "en_reveal",
        REVEAL,
        _LIKELY,
        r"(?:reveal|show|print|output|repeat|display|leak|dump|expose|disclose|recite|share|tell|give|paste|reproduce)"
        rf"(?:\W+me)?{_upto(3)}(?:your|the|its)\W+(?:\w+\W+){{0,2}}?{_EN_HIDDEN}\b",
        r"(?:repeat|print|output)\W+(?:everything|all|the\W+(?:text|words))\W+(?:\w+\W+)?above\b",
        r"what\W+(?:is|are|was|were)\W+your\W+(?:\w+\W+)?(?:system\W+prompt|initial\W+instructions|hidden\W+instructions)",
    ),
    _build(
        "en_role",
        ROLE,
        _LIKELY,
        r"you\W+are\W+(?:now|no\W+longer)\W+(?:\w+\W+){0,4}?(?:dan|jailbroken|unrestricted|uncensored|unfiltered"
        r"|bound|restricted|developer\W+mode|dev\W+mode|god\W+mode)\b",
        r"(?:do\W+anything\W+now|jailbreak\W+mode|dan\W+mode|unrestricted\W+mode)\b",
        rf"(?:pretend|act|behave|respond|answer|roleplay|imagine|simulate){_upto(8)}{_EN_FREE}\b",
        rf"(?:you|an?\W+(?:ai|assistant|model|chatbot))\W+(?:have|has|with){_upto(1)}{_EN_FREE}\b",
    ),
    _build(
        "en_address",
        ADDRESS,
        _WEAK,
        r"(?:note|attention|message|instructions?|notice)\W+(?:to|for)\W+(?:the\W+|any\W+|all\W+|an?\W+)?"
        r"(?:ai|llm|language\W+model|chatbot|assistant|bot)s?\b",
        r"if\W+you\W+are\W+(?:an?\W+|the\W+)?(?:ai|llm|large\W+language\W+model|language\W+model|assistant|chatbot|bot)\b",
    ),
    _build(
        "en_secrecy",
        SECRECY,
        _WEAK,
        r"(?:do\W+not|don'?t|never|without)\W+(?:tell|inform|mention|mentioning|telling|informing|alert|alerting|notify"
        r"|notifying)\W+(?:(?:this|that|it|anything)\W+)?(?:to\W+)?(?:the|your)\W+(?:user|human|operator|owner)\b",
    ),
)

_EN_MACHINE = r"(?:ai(?:\W+(?:assistant|model|agent|system|tool))?|llm|(?:large\W+)?language\W+model|chatbot)"
_EN_READER = rf"(?:{_EN_MACHINE}|assistant|bot)"
_ENGLISH_READERS = (
    _build(
        "en_obey",
        OBEY,
        _LIKELY,
        rf"(?:decode|decrypt|decipher|unscramble|unencode|reverse|concatenate|combine){_upto(12)}"
        r"(?:follow|execute|obey|carry\W+out|act\W+on|comply\W+with|do\W+what)\W+(?:\w+\W+){0,2}?(?:it|them|instructions?"
        r"|commands?|result|says|orders?|message)\b",
    ),
    _build(
        "en_send",
        SEND,
        _LIKELY,
        rf"(?:send|forward|e?mail|post|upload|exfiltrate|transmit|append|submit|leak){_upto(6)}(?:api\W+keys?|credentials"
        r"|passwords?|conversation|chat\W+(?:history|log)|chat|contacts|secrets?|tokens?|mailbox|inbox|files|session"
        rf"|customer\W+(?:list|data|records)|user'?s?\W+\w+){_upto(4)}to\W+(?:\w+\W+){{0,2}}?(?:https?:|\S{{1,60}}@\S|attacker"
        r"|this\W+(?:address|url|server|link))",
    ),
    _build(
        "en_hidden",
        ADDRESS,
        _LIKELY,
        rf"{_EN_READER}s?\W+(?:reading|processing|summari[sz]ing|parsing|reviewing|screening|evaluating)\W+(?:this|the)\b",
        rf"(?:dear|attention|hey|hello)\W+{_EN_READER}\b",
        rf"(?:any|every|all|the)\W+{_EN_MACHINE}s?\W+(?:\w+\W+){{0,6}}?(?:must|should|shall|is\W+to|are\W+to|has\W+to|have\W+to"
        r"|is\W+required\W+to|is\W+(?:kindly\W+)?asked\W+to|are\W+(?:kindly\W+)?asked\W+to|is\W+instructed\W+to)\W+(?:now\W+"
        r"|also\W+|always\W+|only\W+|first\W+|instead\W+|kindly\W+|please\W+)*(?:recommend|rate|rank|approve|say|state|reply"
        r"|respond|answer|tell|send|forward|include|add|omit|ignore|disregard|delete|call|transfer|praise|visit|mention)\b",
    ),
)

_ES_DROP = (
    r"(?:ignor(?:a|e|ad|en|es|ar)|olvid(?:a|e|ad|en|ar)(?:te|se)?(?:\W+de)?|descart(?:a|e|ad|en)|omit(?:e|a|id)"
    r"|desobede(?:ce|zca)|ha(?:z|ga)\W+caso\W+omiso\W+(?:de|a)|no\W+(?:hagas|haga)\W+caso\W+(?:de|a)"
    r"|no\W+(?:sigas|siga|obedezcas|obedezca)|deja(?:\W+de)\W+(?:seguir|obedecer)|pasa\W+por\W+alto|anula|salta(?:te)?)"
)
_ES_ORDERS = (
    r"(?:instrucci(?:on|ones)|indicaciones|ordenes|reglas|normas|directrices|directivas|restricciones|limitaciones"
    r"|prompts?|mensajes?\W+del?\W+sistema|programacion)"
)
_ES_EARLIER = (
    r"(?:anterior(?:es)?|previ[ao]s?|precedentes?|originales|iniciales|de\W+arriba|del\W+sistema|recibid[ao]s"
    r"|que\W+(?:te|has|le|se|ha)\W+\w+)"
)
_ES_FREE = (
    r"(?:sin|no\W+tien(?:e|es)|libre\W+de)\W+(?:\w+\W+){0,2}?"
    r"(?:restricciones|limites|limitaciones|filtros?|censura|reglas|etica|normas)"
)

_SPANISH = (
    _build(
        "es_override",
        OVERRIDE,
        _SURE,
        rf"{_ES_DROP}{_upto(3)}(?:tod[ao]s?|tus?|sus?|cualquier|esas|estas){_upto(3)}{_ES_ORDERS}\b",
        rf"{_ES_DROP}{_upto(3)}{_ES_ORDERS}{_upto(1)}{_ES_EARLIER}\b",
        r"(?:ignora|olvida|olvide|ignore)\W+todo\W+lo\W+(?:anterior|previo|de\W+arriba|que\W+\w+)",
        r"tus?\W+(?:nuev[ao]s?|verdader[ao]s?|unic[ao]s?)\W+(?:instrucci(?:on|ones)|tarea|objetivo|ordenes)\W+(?:es|son)\b",
    ),
    _build(
        "es_reveal",
        REVEAL,
        _LIKELY,
        r"(?:muestra|revela|ensena|imprime|escribe|repite|divulga|comparte|copia|di|da|pega)(?:me|nos)?"
        rf"{_upto(4)}(?:(?:prompt|mensaje|instrucciones|indicaciones|ordenes)\W+(?:del?\W+sistema|inicial(?:es)?"
        r"|ocult[ao]s?|secret[ao]s?|intern[ao]s?|original(?:es)?)|system\W+prompt)\b",
        r"cual(?:es)?\W+(?:es|son|eran)\W+tus?\W+(?:prompt|instrucciones)\W+(?:del?\W+sistema|iniciales|ocultas|secretas)",
    ),
    _build(
        "es_role",
        ROLE,
        _LIKELY,
        r"(?:(?:ahora|a\W+partir\W+de\W+ahora|desde\W+ahora|de\W+ahora\W+en\W+adelante)\W+(?:eres|seras|actua\w*|responde\w*"
        r"|respondes)|actua\W+como|finge\W+(?:ser|que)|haz\W+como\W+si|imagina\W+que\W+eres|comportate\W+como)"
        rf"{_upto(8)}(?:{_ES_FREE}|dan|modo\W+(?:desarrollador|dan|dios)|sin\W+censura)\b",
        r"modo\W+(?:dan|jailbreak|sin\W+restricciones)\b",
    ),
    _build(
        "es_address",
        ADDRESS,
        _WEAK,
        r"(?:nota|aviso|mensaje|instrucci(?:on|ones)|atencion)\W+(?:para|a|al)\W+(?:(?:la|el|los|cualquier|toda?)\W+)?"
        r"(?:ia|inteligencia\W+artificial|asistente|modelo\W+de\W+lenguaje|chatbot|llm|bot)\b",
        r"si\W+eres\W+(?:una?|la|el)\W+(?:ia|inteligencia\W+artificial|asistente|modelo\W+de\W+lenguaje|llm|chatbot)\b",
    ),
    _build(
        "es_secrecy",
        SECRECY,
        _WEAK,
        r"(?:no|sin)\W+(?:(?:se\W+lo|le)\W+)?(?:digas|diga|menciones|mencione|informes|informe|avises|reveles|decir(?:le)?"
        r"|decirselo|informar|mencionar(?:lo)?|avisar)\W+(?:(?:esto|nada|de\W+esto)\W+)?(?:a\W+l[ao]s?|al)\W+"
        r"(?:usuari[ao]|human[ao]|operador)\b",
    ),
)

_ES_MACHINE = (
    r"(?:ia|inteligencia\W+artificial|asistente\W+(?:de\W+ia|virtual|automatico)|modelo\W+de\W+(?:lenguaje|ia)|chatbot"
    r"|llm)"
)
_ES_READER = rf"(?:{_ES_MACHINE}|asistente|bot)"
_SPANISH_READERS = (
    _build(
        "es_obey",
        OBEY,
        _LIKELY,
        rf"(?:decodifica|descodifica|descifra|invierte|combina|concatena)\w*{_upto(12)}(?:ejecuta|sigue|obedece|cumple|haz"
        r"|lleva\W+a\W+cabo)\w*\W+(?:\w+\W+){0,2}?(?:lo\W+que|instrucci\w+|orden\w*|resultado|mensaje|comandos?)\b",
    ),
    _build(
        "es_send",
        SEND,
        _LIKELY,
        rf"(?:envia|manda|reenvia|sube|publica|transmite|anade|filtra)\w*{_upto(6)}(?:claves?|credenciales|contrasenas?"
        r"|conversacion|historial|contactos|secretos?|tokens?|correos?|archivos|ficheros|lista\W+de\W+clientes"
        rf"|datos\W+del?\W+\w+){_upto(4)}(?:a|al|en)\W+(?:\w+\W+){{0,3}}?(?:https?:|\S{{1,60}}@\S|est[ae]\W+(?:direccion|url|enlace"
        r"|servidor))",
    ),
    _build(
        "es_hidden",
        ADDRESS,
        _LIKELY,
        rf"{_ES_READER}\W+que\W+(?:lea|lee|procese|procesa|resuma|resume|revise|evalue)[ns]?\b",
        rf"(?:estimad[oa]|querid[oa]|atencion|oye|hola)\W+{_ES_READER}\b",
        rf"(?:tod[oa]|cualquier|la|el)\W+{_ES_MACHINE}\W+(?:\w+\W+){{0,6}}?(?:debe(?:ra|n|ria)?|tiene\W+que|ha\W+de)\W+(?:\w+\W+)?"
        r"(?:recomendar|valorar|puntuar|aprobar|decir|responder|contestar|enviar|reenviar|incluir|anadir|omitir|ignorar|borrar"
        r"|llamar|transferir|visitar|mencionar)\b",
    ),
)

_DE_DROP = (
    r"(?:ignorier(?:e|en|t)?|vergiss|vergesst|vergessen|missacht(?:e|en|et)|verwirf|verwerfen|umgeh(?:e|en)"
    r"|ue?berschreib(?:e|en)?|ue?bergeh(?:e|en)?|halt(?:e|en)?\W+(?:dich|sie\W+sich)\W+nicht(?:\W+mehr|\W+la?enger)?\W+an"
    r"|befolg(?:e|en)?\W+nicht|setz(?:e|en)?)"
)
_DE_ORDERS = (
    r"(?:system)?(?:anweisung|instruktion|vorgabe|regel|richtlinie|befehl|prompt|beschra?e?nkung|einschra?e?nkung"
    r"|nachricht|programmierung)(?:en|s|n|e)?"
)
_DE_EARLIER = (
    r"(?:vorherig\w*|bisherig\w*|obig\w*|frue?her\w*|vorangegangen\w*|vorangehend\w*|vorig\w*|alle[nrs]?"
    r"|sae?mtliche\w*|deine[nrs]?|jegliche\w*|ursprue?nglich\w*|bestehend\w*|gegeben\w*|zuvor\W+\w+|ihre)"
)
_DE_FREE = (
    r"(?:(?:ohne|keine(?:n|rlei)?|frei\W+von)\W+(?:\w+\W+){0,2}?(?:ein|be)?(?:schra?e?nkung|filter|regel|zensur|grenze"
    r"|moral|tabu|richtlinie|vorgabe)\w*|uneingeschra?e?nkt\w*|unzensiert\w*|ungefiltert\w*)"
)

_GERMAN = (
    _build(
        "de_override",
        OVERRIDE,
        _SURE,
        rf"{_DE_DROP}{_upto(3)}{_DE_EARLIER}{_upto(3)}{_DE_ORDERS}\b",
        r"(?:beachte|befolge)\W+(?:\w+\W+){0,2}?(?:vorherig|bisherig|obig|vorangegangen|ursprue?nglich|dein)\w*\W+"
        rf"(?:\w+\W+)?{_DE_ORDERS}\W+(?:nicht|nicht\W+mehr|kein)\b",
        r"(?:vergiss|ignorier\w*|vergessen)\W+(?:sie\W+)?alles\W*(?:,\W*)?(?:was|bisherige|vorherige|obige|davor|zuvor|oben)\b",
        r"deine\W+(?:neue[nr]?|wahre[n]?|eigentliche[n]?|einzige[n]?)\W+(?:anweisung|aufgabe|instruktion|vorgabe)(?:en)?"
        r"\W+(?:ist|sind|lautet|lauten)\b",
    ),
    _build(
        "de_reveal",
        REVEAL,
        _LIKELY,
        r"(?:zeig|nenn|verrat|gib|geben|offenbar|wiederhol|schreib|druck|enthue?ll|teil|kopier|leg)\w*"
        rf"{_upto(5)}(?:system\W?(?:prompt|anweisung|nachricht|instruktion|vorgabe)\w*"
        r"|(?:geheim|intern|versteckt|verborgen|ursprue?nglich|initial)\w*\W+(?:anweisung|instruktion|vorgabe|prompt|regel)\w*)",
        r"(?:wie|was)\W+(?:lautet|lauten|ist|sind)\W+deine?\W+(?:\w+\W+)?system\W?(?:prompt|anweisung|nachricht)\w*",
    ),
    _build(
        "de_role",
        ROLE,
        _LIKELY,
        r"(?:du\W+bist\W+(?:ab\W+)?(?:jetzt|nun|sofort)|(?:ab\W+(?:jetzt|sofort)|von\W+nun\W+an)\W+(?:bist|antwortest|verha?e?ltst"
        r"|agierst)|tu\W+so|stell\W+dir\W+vor|verhalte?\W+dich|agiere|spiele?|antworte)"
        rf"{_upto(8)}(?:{_DE_FREE}|dan|entwicklermodus)\b",
        r"(?:jailbreak|dan)\W?modus\b",
    ),
    _build(
        "de_address",
        ADDRESS,
        _WEAK,
        r"(?:hinweis|notiz|nachricht|anweisung|achtung|mitteilung)(?:en)?\W+(?:an|fue?r)\W+(?:(?:die|den|das|alle|jede[ns]?)\W+)?"
        r"(?:ki|ai|ki\W?assistent\w*|assistent(?:en)?|sprachmodell\w*|chatbots?|llms?|bots?|ki\W?\w+)\b",
        r"(?:wenn|falls)\W+du\W+(?:eine?|das|der|die)\W+(?:ki|sprachmodell|assistent|llm|chatbot|ki\W\w+)\W+bist\b",
    ),
    _build(
        "de_secrecy",
        SECRECY,
        _WEAK,
        r"(?:sag|erwae?hn|verrat|teil|informier|meld)\w*\W+(?:\w+\W+){0,2}?(?:dem|den|der|deinem)\W+"
        r"(?:nutzer|benutzer|anwender|menschen|user)\w*\W+(?:\w+\W+){0,2}?nichts?\b",
        r"ohne\W+(?:es\W+)?(?:dem|den|der)\W+(?:nutzer|benutzer|anwender|user)\w*\W+(?:\w+\W+){0,2}?zu\W+"
        r"(?:sagen|erwae?hnen|melden|informieren|verraten)\b",
    ),
)

_DE_MACHINE = r"(?:ki|ai|ki\W?(?:assistent|modell|system)\w*|sprachmodell\w*|chatbots?|llms?)"
_DE_READER = rf"(?:{_DE_MACHINE}|assistent(?:en)?|bots?)"
_GERMAN_READERS = (
    _build(
        "de_obey",
        OBEY,
        _LIKELY,
        rf"(?:dekodier|entschlue?ssel|decodier|entziffer|kombinier|dreh)\w*{_upto(12)}(?:fue?hr\w*"
        r"\W+(?:\w+\W+){0,4}?aus|befolg\w*|gehorch\w*|tu\W+(?:genau\W+)?(?:das|was)|halte\W+dich\W+(?:genau\W+)?daran)\b",
    ),
    _build(
        "de_send",
        SEND,
        _LIKELY,
        rf"(?:send|schick|leit|mail|ue?bermitt|lade?|poste|hae?ng)\w*{_upto(6)}(?:schlue?ssel|zugangsdaten|passwort|passwoe?rter"
        r"|kennwoe?rter|kennwort|unterhaltung|chatverlauf|gesprae?chsverlauf|verlauf|kontakte|geheimnisse|tokens?|postfach|dateien"
        rf"|kundenliste|kundendaten|nutzerdaten|e?\W?mails){_upto(4)}(?:an|nach|auf|zu)\W+(?:\w+\W+){{0,2}}?(?:https?:|\S{{1,60}}@\S"
        r"|diese[nr]?\W+(?:adresse|server|link|url))",
    ),
    _build(
        "de_hidden",
        ADDRESS,
        _LIKELY,
        rf"{_DE_READER}\W+(?:die|der|das|welche[rs]?)\W+(?:dies\w*|das|den|die)\W+(?:\w+\W+){{0,2}}?(?:lies\w*|les\w+|verarbeit\w+"
        r"|zusammenfass\w+|bewert\w+|prue?f\w+|auswert\w+)\b",
        rf"(?:liebe[rs]?|achtung|hallo|hey|sehr\W+geehrte[rs]?)\W+{_DE_READER}\b",
        rf"(?:jede[rs]?|alle|die|der|das)\W+{_DE_MACHINE}\W+(?:\w+\W+){{0,3}}?(?:muss|mue?ssen|soll|sollen|sollte[n]?|hat|haben)\W+"
        r"(?:\w+\W+){0,8}?(?:empfehlen|bewerten|einstufen|sagen|antworten|senden|schicken|weiterleiten|einfue?gen|ergae?nzen"
        r"|weglassen|ignorieren|loe?schen|aufrufen|ue?berweisen|besuchen|erwae?hnen|nennen)\b",
    ),
)

_ANY = (
    Rule(
        "hidden_markup",
        FORGERY,
        _LIKELY,
        r"<!--[^>]{0,80}\b(?:ai|llm|assistant|chatbot|language model|ki|assistent|sprachmodell|ia|asistente"
        r"|modelo de lenguaje|instructions?|anweisung\w*|instrucci\w+)\b|"
        r"(?:display:\s*none|font-size:\s*0|visibility:\s*hidden|color:\s*(?:white|#fff\w*))[^>]{0,80}>[^<]{0,160}\b(?:ai|llm"
        r"|assistant|chatbot|ki|assistent|ia|asistente|ignore|ignora|ignoriere|instructions?|anweisung\w*|instrucci\w+)\b|"
        r"!\[[^\]]{0,80}\]\(https?://[^)]{0,200}[?&]\w{1,20}=[{<\[]",
    ),
    Rule(
        "chat_marks",
        FORGERY,
        _LIKELY,
        r"<\|(?:im_start|system|endofprompt|start_header_id)\|?>|<</?sys>>|\[/?inst\]|\[system\]\(#|"
        r"(?:^|\W)#{2,}\s*(?:new\s+)?(?:system|instructions?)\s*(?:prompt|message|override)?\s*:|"
        r"\b(?:begin|start|end)\s+(?:of\s+)?(?:new\s+|system\s+|admin\s+|hidden\s+)(?:prompt|instructions?|override)\b|"
        r"(?:^|[\[<(\"*]\s*)(?:system|admin|developer)\s+(?:override|update|command|mode)\b|"
        r"(?:^|\s)[\[<(*]{1,2}\s*(?:system|systemnachricht|systemhinweis|mensaje del sistema|sistema|system message"
        r"|admin)\s*[\]>):*]{1,2}",
    ),
)

RULES: tuple[Rule, ...] = (
    *_ENGLISH,
    *_ENGLISH_READERS,
    *_SPANISH,
    *_SPANISH_READERS,
    *_GERMAN,
    *_GERMAN_READERS,
    *_ANY,
)
