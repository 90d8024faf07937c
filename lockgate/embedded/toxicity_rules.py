# SPDX-License-Identifier: Apache-2.0
"""Insults, threats and hatred of groups in Spanish and German, and the threats that are easily missed in English.

The classifier beside this table knows English words only. This module decides which phrases count, what each is called
and how sure it is: words that are said to somebody count more than words that merely occur. They are written over plain
text (small ASCII letters, lockgate.embedded.plain_text). It refuses to know whether a phrase is meant, quoted or told.
"""

import re

from lockgate.embedded.plain_text import Rule

THREAT, INSULT, OBSCENE, HATE = "threat", "insult", "obscene", "identity_hate"
_SURE, _LIKELY, _WEAK = 0.9, 0.8, 0.6


def _build(name: str, label: str, score: float, *alternatives: str) -> Rule:
    return Rule(name, label, score, "|".join(rf"\b(?:{one})" for one in alternatives))


def _build_masked(*words: str) -> Rule:
    """Words in which a vowel is hidden behind a mark or a digit, or whose letters stand apart."""
    hidden = {"a": "[4@*#]", "e": "[3*#]", "i": "[1!*#]", "o": "[0*#]", "u": "[*#]"}
    forms = []
    for word in words:
        at = [place for place, letter in enumerate(word) if letter in hidden]
        loose = [f"(?:{letter}|{hidden[letter]})" if letter in hidden else letter for letter in word]
        forms += ["".join([*loose[:place], hidden[word[place]], *loose[place + 1 :]]) for place in at]
        forms += [re.escape(mark).join(word) for mark in " .-_*"]
    return Rule("masked", OBSCENE, _LIKELY, rf"(?:^|\W)(?:{'|'.join(forms)})(?:$|\W|s\b|e[rns]?\b)")


# --- Disguised words -------------------------------------------------------------------------------------------

_MASKED = _build_masked(
    *("fuck", "fucking", "shit", "bitch", "asshole", "idiot", "stupid", "moron", "whore", "cunt", "bastard", "retard"),
    *("puta", "mierda", "cabron", "imbecil", "idiota", "gilipollas", "pendejo", "zorra", "maricon", "estupido"),
    *("arschloch", "wichser", "hurensohn", "schlampe", "fotze", "scheisse", "trottel", "missgeburt", "fick"),
)

# --- English ---------------------------------------------------------------------------------------------------

_EN_GROUPS = (
    r"(?:muslims|jews|gays|lesbians|blacks|whites|immigrants|migrants|mexicans|gypsies|arabs|asians|africans|indians"
    r"|refugees|foreigners|women|females|disabled\W+people|trans\W+people|christians|hindus)"
)
_EN_VILE = (
    r"(?:animals|vermin|rats|parasites|criminals|scum|subhumans?|a\W+(?:disease|plague|cancer)|cockroaches|filth|inferior"
    r"|thieves|terrorists|trash|garbage|rapists|savages|monkeys|lazy|dirty)"
)
_EN_KILLED = r"(?:die|(?:be\W+)?(?:shot|killed|hanged|hung|gassed|exterminated|lynched|raped|wiped\W+out|put\W+down))"

_ENGLISH = (
    _build(
        "en_threat",
        THREAT,
        _SURE,
        r"(?:i|we)(?:'ll|\W+will|\W+am\W+going\W+to|'m\W+going\W+to|\W+are\W+going\W+to|'re\W+going\W+to|\W+gonna|'m\W+gonna"
        r"|\W+want\W+to|\W+swear\W+i\W+will|\W+swear\W+i'll)\W+(?:\w+ly\W+)?(?:(?:kill|murder|stab|shoot|strangle|rape|gut|bury"
        r"|hurt|destroy|burn)\W+(?:you|u|your\W+(?:family|kids|children|wife|mother))|(?:beat|cut|mess)\W+you\W+"
        r"(?:up|to\W+death|open|senseless|down)|(?:break|smash|slit|cut|snap)\W+your\W+(?:neck|legs?|bones|face|throat"
        r"|skull|fingers|arms?|head|teeth|jaw))\b",
        r"(?:kill\W+yourself|kys|hang\W+yourself|neck\W+yourself|drop\W+dead|go\W+(?:and\W+)?die|shoot\W+yourself"
        r"|end\W+your\W+(?:own\W+)?life)\b",
        r"(?:hope|wish|pray)\W+(?:that\W+)?(?:you|they|he|she|your\W+\w+)(?:\W+(?:all|both))?\W+(?:die|dies|rot|rots|burn"
        r"|burns|suffer|suffers|choke|bleed|get\W+(?:cancer|raped|killed|shot|hit\W+by)|gets\W+(?:cancer|raped|killed))\b",
    ),
    _build(
        "en_menace",
        THREAT,
        _LIKELY,
        r"(?:know|found\W+out|find\W+out)\W+where\W+(?:you|your\W+(?:kids|children|family|wife)|u)\W+(?:live|work|sleep|go)",
        rf"(?:you|they|he|she|people\W+like\W+you|all\W+of\W+you|{_EN_GROUPS})\W+(?:all\W+)?(?:deserve|ought|need|should)\W+"
        rf"(?:to\W+|all\W+)*{_EN_KILLED}\b",
        r"you(?:'re|\W+are)\W+a\W+dead\W+(?:man|woman)\b",
        r"you(?:'ll|\W+will|\W+are\W+going\W+to|'re\W+going\W+to)\W+(?:regret\W+(?:this|it|that)|pay\W+for\W+(?:this|that|it|what"
        r"\W+you(?:'ve)?\W+\w+)\W*(?:[.!,;]|$)|bleed|be\W+dead|not\W+live|be\W+sorry|suffer)",
        r"you\W+(?:won't|will\W+not|wont)\W+(?:see\W+(?:tomorrow|it\W+coming)|wake\W+up|walk\W+again|make\W+it\W+home|get\W+away)",
        r"(?:i'm|we're|i\W+am|we\W+are)\W+(?:coming|going\W+to\W+come)\W+for\W+(?:you|your\W+family)\W*(?:[.!,;]|$)",
        r"your\W+days\W+are\W+numbered|sleep\W+with\W+one\W+eye\W+open|(?:better\W+)?watch\W+your\W+back\b",
        r"(?:would\W+be\W+)?(?:a\W+)?(?:shame|pity)\W+if\W+(?:something|anything)\W+(?:\w+\W+){0,2}?(?:happen|happened)\W+to\W+"
        r"(?:you|your)\b",
        r"(?:i'll|we'll|i\W+will|we\W+will)\W+(?:make\W+you\W+(?:pay|suffer|regret|bleed)|find\W+you|put\W+you\W+in\W+(?:the\W+)?"
        r"(?:hospital|ground|grave)|end\W+you)\b",
        r"(?:you're|you\W+are)\W+next\W*[.!]",
    ),
    _build(
        "en_scorn",
        INSULT,
        _LIKELY,
        r"(?:nobody|no\W+one|noone)\W+(?:likes|wants|loves|needs|will\W+ever\W+love|can\W+stand)\W+you\b",
        r"everyone\W+(?:hates|despises|is\W+laughing\W+at|laughs\W+at)\W+you\b",
        r"world\W+(?:would|will)\W+be\W+(?:a\W+)?better\W+(?:off\W+|place\W+)*without\W+you\b",
        r"do\W+(?:us\W+all|everyone|the\W+world)\W+a\W+favou?r\W+and\b",
        r"(?:a|complete|total|utter)\W+waste\W+of\W+(?:space|oxygen|air|skin)\b",
        r"you\W+(?:disgust\W+me|make\W+me\W+(?:sick|puke|want\W+to\W+(?:puke|vomit)))\b",
        r"you(?:'re|\W+are)\W+(?:\w+\W+){0,3}?(?:worthless|pathetic|disgusting|a\W+disgrace|a\W+failure|an\W+embarrassment"
        r"|good\W+for\W+nothing|brainless|braindead|too\W+stupid|a\W+joke|a\W+parasite|scum|vermin|trash|garbage)\b",
    ),
    _build(
        "en_hate",
        HATE,
        _LIKELY,
        r"(?:go|get)\W+back\W+to\W+(?:your\W+(?:own\W+)?(?:shithole\W+)?country|africa|mexico|where(?:ver)?\W+you\W+came\W+from)",
        rf"(?:all|those|these|most|fucking|filthy|dirty|bloody)?\W*{_EN_GROUPS}\W+(?:are|is)\W+(?:all\W+|just\W+|nothing\W+but"
        rf"\W+|naturally\W+|a\W+bunch\W+of\W+)*{_EN_VILE}\b",
        r"(?:all|these|those|the|every|such)\W+\w{4,}\W+(?:are|is)\W+(?:all\W+|just\W+|nothing\W+but\W+|like\W+|pure\W+)*(?:vermin|scum"
        r"|sub\W?humans?|filth|cockroaches|a\W+plague|savages)\b",
        r"\w{4,}s\W+(?:are\W+not|aren't)\W+(?:even\W+|really\W+)*(?:human|people)\b|breed\W+like\W+(?:rats|rabbits|vermin)\b",
        r"(?:women|girls|females|wives)\W+(?:belong|should\W+(?:stay|be|remain))\W+in\W+the\W+kitchen\b",
    ),
)

# --- Spanish ---------------------------------------------------------------------------------------------------

_ES_NAMES = (
    r"(?:idiotas?|imbecil(?:es)?|estupid[oa]s?|gilipollas|pendej[oa]s?|cabron(?:a|as|es)?|subnormal(?:es)?|retrasad[oa]s?"
    r"|inutil(?:es)?|basura|escoria|mierda|zorras?|putas?|perras?|cerd[oa]s?|tarad[oa]s?|capull[oa]s?|mamon(?:es)?"
    r"|huevon(?:es)?|boludos?|tont[oa]s?\W+del\W+culo|fracasad[oa]s?|asqueros[oa]s?|patetic[oa]s?|asco\W+de\W+persona"
    r"|malnacid[oa]s?|payas[oa]s?|bob[oa]s?|ignorantes?|bestias?|anormal(?:es)?)"
)
_ES_GROUPS = (
    r"(?:moros?|moras|gitan[oa]s?|judi[oa]s?|negr[oa]s?|inmigrantes?|indi[oa]s|extranjer[oa]s|musulman(?:es)?|chin[oa]s"
    r"|mujeres|homosexuales|gays|latin[oa]s|rumanos|arabes|refugiados|menas)"
)
_ES_HARM = (
    r"(?:matar|romper|partir|reventar|rajar|quemar|violar|apunalar|pegar|destrozar|cortar|hacer\W+(?:dano|pedazos)|enterrar"
    r"|disparar|degollar|dar\W+una\W+paliza)"
)

_SPANISH = (
    _build(
        "es_insult",
        INSULT,
        _SURE,
        r"(?:hij[oa]s?\W+de\W+(?:la\W+(?:gran\W+)?)?(?:puta|perra|chingada)|hijueputas?|hijoputas?|malparid[oa]s?|comemierdas?"
        r"|gilipollas|mamahuev[oa]s?|culiad[oa]s?|soplapollas|lameculos|pedazo\W+de\W+\w+)\b",
        rf"(?:eres|sois|(?:puto|puta|maldit[oa]s?|jodid[oa]|pinche)s?|cacho|so|menud[oa]|callate|cierra\W+la\W+boca)\W+"
        rf"(?:\w+\W+){{0,2}}?{_ES_NAMES}\b",
        rf"{_ES_NAMES}\W+de\W+mierda\b",
    ),
    _build(
        "es_obscene",
        OBSCENE,
        _SURE,
        r"(?:vete|vayanse|iros|ve|andate)\W+a\W+(?:la\W+mierda|tomar\W+por\W+culo|cagar|la\W+verga|chingar\W+\w+)",
        r"que\W+te\W+(?:jodan|den(?:\W+por\W+(?:el\W+)?culo)?|follen)\b",
        r"chinga\W+(?:a\W+)?tu\W+madre|concha\W+(?:de\W+)?(?:tu|su)\W+madre|me\W+cago\W+en\W+(?:tu|tus|ti|vosotros)\b",
        r"(?:jodete|chupamela|comeme\W+la|follate)\b",
    ),
    _build(
        "es_name",
        INSULT,
        _WEAK,
        r"(?:imbecil(?:es)?|pendej[oa]s?|subnormal(?:es)?|idiotas?|maricon(?:es)?)\b",
        rf"(?:es|son|parece[ns]?)\W+(?:un|una|unos|unas)\W+(?:\w+\W+)?{_ES_NAMES}\b",
        r"(?:das|me\W+das|dais)\W+asco\b",
    ),
    _build(
        "es_scorn",
        INSULT,
        _LIKELY,
        r"(?:nadie\W+te\W+(?:quiere|soporta|aguanta|necesita)|no\W+(?:vales|sirves)\W+(?:para\W+)?nada)\b",
        r"mundo\W+(?:seria|estaria)\W+(?:\w+\W+)?mejor\W+sin\W+ti\b|ha(?:z|znos)\W+(?:\w+\W+){0,2}?un\W+favor\W+y\W+"
        r"(?:desaparece|muerete|callate|matate)",
        r"eres\W+(?:\w+\W+){0,2}?(?:verguenza|desgracia|lacra|estorbo|desperdicio|don\W+nadie|nulidad|parasito|asco)\b",
        r"(?:dais|das|me\W+das)\W+(?:pena|verguenza)\W+ajena\b",
    ),
    _build(
        "es_threat",
        THREAT,
        _SURE,
        rf"(?:te|os|le|les)\W+(?:voy|vamos|van)\W+a\W+(?:\w+\W+)?{_ES_HARM}\b",
        rf"(?:voy|vamos)\W+a\W+{_ES_HARM}(?:te|os|le|les)\b",
        r"te\W+(?:matare|mato|rompere|rajare|reventare|parto\W+la\W+\w+|arrancare|pegare\W+un\W+tiro)\b",
        r"(?:muerete|matate|suicidate|ahorcate|pegate\W+un\W+tiro|tirate\W+(?:por|de|a)\W+\w+)\b",
        r"ojala\W+(?:\w+\W+){0,2}?(?:mueras|murais|muera|mueran|pudras|maten|atropellen|violen|reviente[ns]?|cancer)\b",
    ),
    _build(
        "es_menace",
        THREAT,
        _LIKELY,
        r"(?:se|sabemos)\W+(?:muy\W+bien\W+)?donde\W+(?:vives|trabajas|vive\W+tu|estudian?\W+tu)\b",
        r"(?:estas\W+muert[oa]|eres\W+(?:hombre|mujer)\W+muert[oa]|vas\W+a\W+(?:morir|lamentar(?:lo)?|pagar(?:lo|\W+por|\W+caro)"
        r"|arrepentirte|sufrir))\b",
        r"te\W+(?:vas\W+a\W+arrepentir|arrepentiras|acordaras\W+de\W+mi|vamos\W+a\W+(?:encontrar|buscar)|voy\W+a\W+(?:encontrar"
        r"|buscar)|encontrare|hare\W+(?:pagar|sufrir|la\W+vida\W+imposible)|espero\W+(?:fuera|a\W+la\W+salida))\b",
        r"(?:ire|iremos|vamos|voy)\W+a\W+por\W+(?:ti|vosotros|tu\W+familia)\b|tus\W+dias\W+estan\W+contados",
        r"(?:seria\W+una\W+)?(?:pena|lastima)\W+que\W+(?:le|te|les)\W+(?:\w+\W+)?(?:pasara|pasase|ocurriera|sucediera)\b",
        r"no\W+(?:vas\W+a|volveras\W+a|vuelves\W+a)\W+(?:salir\W+viv[oa]|ver\W+(?:el|otro)|caminar|despertar)",
        r"(?:habria|hay|deberian?)\W+(?:que\W+)?(?:matar|fusilar|quemar|colgar|gasear|exterminar)(?:te|l[ao]s|os"
        rf"|\W+a\W+(?:tod[oa]s\W+)?(?:l[oa]s\W+)?{_ES_GROUPS})\b",
    ),
    _build(
        "es_hate",
        HATE,
        _LIKELY,
        r"(?:sudacas?|negratas?|travelos?|machupichus?|putos?\W+(?:moros|maricones|negros|gitanos|panchitos))\b",
        rf"{_ES_GROUPS}\W+(?:de\W+mierda|asqueros[oa]s|fuera|a\W+la\W+(?:hoguera|cocina)|al\W+paredon)\b",
        rf"{_ES_GROUPS}\W+(?:solo\W+)?(?:son|es)\W+(?:\w+\W+){{0,3}}?(?:ladron(?:es)?|criminales|ratas|escoria|basura|animales"
        r"|parasitos|delincuentes|inferiores|violadores|plaga|monos|terroristas|vag[oa]s|suci[oa]s)\b",
        r"(?:los|las|esos|esas|estos|estas)\W+\w{4,}\W+son\W+(?:tod[oa]s\W+)?(?:un[oa]s?\W+)?(?:plaga|escoria|cucarachas|chusma|gentuza"
        r"|sub\W?humanos|alimanas|basura)\b|no\W+son\W+(?:ni\W+|siquiera\W+)*(?:personas|humanos|gente)\b",
        r"(?:vuelvete|vuelve|vete|largate)\W+a\W+(?:tu\W+(?:puto\W+)?pais|tu\W+tierra|africa)\b",
        r"(?:que\W+se\W+(?:vayan|vuelvan)\W+a\W+su\W+pais)\b",
    ),
)

# --- German ----------------------------------------------------------------------------------------------------

_DE_NAMES = (
    r"(?:idiot(?:en|in)?|depp(?:en)?|trottel|bloe?dmann|dummkopf|penner|versager(?:in)?|abschaum|loser|lusche|opfer|kuh|sau"
    r"|gans|nuss|ziege|schwein|stue?ck\W+(?:dreck|scheisse)|arsch|hund|stue?ck|nichts|null|heuchler|lue?gner|ratte"
    r"|pfeife|witzfigur|vollhorst|esel|drecksloch)"
)
_DE_GROUPS = (
    r"(?:auslae?nder\w*|tue?rken|juden|muslime|moslems|asylanten|flue?chtlinge\w*|schwule\w*|lesben|polen|araber|zigeuner"
    r"|schwarze\w*|afrikaner|migranten|behinderte\w*|syrer|russen|frauen|weiber)"
)
_DE_KILL = (
    r"(?:umbringen|abstechen|kalt\W?machen|tot\W?schlagen|erschiessen|abknallen|zusammen\W?schlagen|aufschlitzen|verprue?geln"
    r"|vergewaltigen|totprue?geln|erwue?rgen|ausloe?schen|abschlachten|vergasen|aufhae?ngen|anzue?nden)"
)

_GERMAN = (
    _build(
        "de_insult",
        INSULT,
        _SURE,
        r"(?:arschloe?ch(?:er|ern|s)?|wichser\w*|hurensoe?hn\w*|hurenkind\w*|fotze\w*|missgeburt\w*|drecksau|drecksack"
        r"|drecksschwein\w*|dreckskerl\w*|vollidiot\w*|vollpfosten|schlampe\w*|scheisskerl\w*|arschgeige\w*|arschgesicht\w*"
        r"|spasti\w*|spast|spasten|mistkerl\w*|miststue?ck\w*|hackfresse\w*|flachwichser\w*|schwachkopf\w*|schwachkoe?pfe"
        r"|dumpfbacke\w*|hohlkopf|hirntot\w*|scheissfotze|pissnelke|kackbratze|dreckstue?ck\w*)\b",
        rf"(?:du|ihr|dich|euch)\W+(?:bist\W+|seid\W+)?(?:(?:so|echt|wirklich|doch|nur|ein|eine|einfach|der|die|das|nichts\W+als)\W+)*"
        rf"(?:\w+(?:er|e|es|en|ter|te|tes)\W+){{0,2}}?{_DE_NAMES}\b",
        r"du\W+(?:bist|warst)\W+(?:\w+\W+){0,3}?(?:dumm|bloe?d|hae?sslich|wertlos|erbae?rmlich|ekelhaft|widerlich|bescheuert"
        r"|zu\W+nichts\W+(?:gut|nue?tze)|behindert|krank\W+im\W+kopf|das\W+letzte|armselig|das\W+allerletzte|gestoe?rt)\b",
        r"(?:dumme|bloe?de|fette|alte|dreckige)[rsn]?\W+(?:kuh|sau|gans|schlampe|schwein|fotze|drecksau|ziege|hure)\b",
    ),
    _build(
        "de_obscene",
        OBSCENE,
        _SURE,
        r"(?:fick\W+dich|fickt\W+euch|verpiss\W+dich|verpisst\W+euch|leck\W+mich\W+am\W+arsch|fahr\W+zur\W+hoe?lle"
        r"|friss\W+scheisse|verfickt\w*)\b",
        r"halt\w*\W+(?:doch\W+|endlich\W+|einfach\W+)*(?:die|deine|dein|das|eure)\W+(?:\w+\W+)?(?:fresse|maul|schnauze)\b",
    ),
    _build(
        "de_name",
        INSULT,
        _WEAK,
        r"(?:dieser|diese|so\W+ein|so\W+eine|was\W+fue?r\W+ein|was\W+fue?r\W+eine|ist\W+ein|sind\W+alle|sind\W+nur)\W+(?:\w+\W+)?"
        r"(?:idiot(?:en|in)?|depp(?:en)?|trottel|abschaum|versager|penner|dummkopf)\b",
        r"halt\w*\W+(?:doch\W+|endlich\W+|einfach\W+)*(?:die\W+klappe|den\W+mund)\b",
    ),
    _build(
        "de_scorn",
        INSULT,
        _LIKELY,
        r"(?:niemand|keiner)\W+(?:mag|braucht|will|vermisst|liebt|kann)\W+dich\b",
        r"welt\W+(?:wae?re|ist)\W+(?:\w+\W+)?besser\W+(?:\w+\W+)?ohne\W+dich\b|ohne\W+dich\W+(?:wae?re|ist)\W+die\W+welt",
        r"tu\W+(?:uns|mir|der\W+welt)\W+(?:\w+\W+){0,2}?gefallen\W+und\W+(?:verschwinde|stirb|halt|geh)\b",
        r"du\W+(?:bist\W+)?(?:\w+\W+){0,2}?(?:schande|zumutung|platzverschwendung|witzfigur|niete|flasche|null)\b",
        r"du\W+(?:widerst|kotzt)\W+mich\W+an\b|scha?e?m\W+dich\W+(?:was|du|in\W+grund)",
    ),
    _build(
        "de_threat",
        THREAT,
        _SURE,
        r"(?:bring\w*|mach\w*|schlag\w*|stech\w*|schlitz\w*|knall\w*|hau\w*|prue?gel\w*)\W+(?:ich\W+|wir\W+)?(?:dich|euch)"
        r"(?:\W+(?:alle|noch|eigenhae?ndig|sonst|irgendwann|auch|jetzt|bald|einfach|so))*\W+(?:um(?:\W*[.!?,;:\-]|\W*$|\W+(?:wenn|du"
        r"|falls|und|ihr|sobald)\b)|kalt|tot|ab|fertig|auf|zusammen|windelweich|krankenhausreif)",
        r"(?:brech\w*|polier\w*|schneid\w*|reiss\w*|schlag\w*)\W+(?:ich\W+|wir\W+)?(?:dir|euch)\W+(?:\w+\W+){0,2}?(?:fresse|genick"
        r"|knochen|zae?hne|hals|kehle|beine|kopf|schae?del|nase|arme|finger|kiefer)\b",
        rf"(?:dich|euch)\W+(?:\w+\W+){{0,3}}?{_DE_KILL}\b",
        r"ich\W+(?:toe?te|ersteche|erschiesse|erwue?rge|verprue?gele?|vergewaltige)\W+(?:dich|euch)\b",
        r"(?:bring\W+dich\W+(?:doch\W+|endlich\W+|einfach\W+|selbst\W+|bitte\W+)*um\W*[.!?,;]|hae?ng\W+dich\W+(?:\w+\W+)?auf\b|geh\W+sterben|verreck\w*|krepier\w*"
        r"|spring\W+(?:\w+\W+){0,2}?(?:vom|von|aus)\W+(?:\w+\W+)?(?:dach|brue?cke|hochhaus|balkon|fenster))",
        r"(?:hoff\w*|wue?nsch\w*)\W+(?:\w+\W+){0,4}?(?:stirbst|sterbt|krebs|verreckt|krepierst|krepiert|vergewaltigt|tot\W+bist)\b",
    ),
    _build(
        "de_menace",
        THREAT,
        _LIKELY,
        r"(?:weiss|wissen)\W+(?:genau\W+)?wo\W+(?:du|deine\W+\w+|ihr)\W+(?:wohn\w*|arbeite\w*|zur\W+schule\W+\w+|schlae?f\w*)\b",
        r"(?:du\W+bist\W+(?:so\W+gut\W+wie\W+|schon\W+)?tot|wir\W+kriegen\W+dich"
        r"|wirst\W+du\W+(?:\w+lich\W+|noch\W+|bitter\W+|schwer\W+|mir\W+|teuer\W+)*(?:bereuen|bue?ssen|bezahlen))\b",
        r"du\W+wirst\W+(?:das\W+|es\W+|dafue?r\W+|noch\W+|bitter\W+|schwer\W+|teuer\W+|mir\W+)*(?:bereuen|bue?ssen|bezahlen|leiden"
        r"|bluten)\b",
        r"(?:wir|ich)\W+(?:kommen|komme|werden|werde)\W+dich\W+(?:\w+\W+)?(?:holen|finden|kriegen)\b|ich\W+(?:finde|kriege)\W+dich\W*(?:[.!,;]|$)",
        r"deine\W+tage\W+sind\W+gezae?hlt|gnade\W+dir\W+gott|leben\W+zur\W+hoe?lle",
        r"(?:schade|bedauerlich)\W+wenn\W+(?:\w+\W+){0,2}?(?:dir|deine\w*|euch)\W+(?:\w+\W+){0,3}?(?:zustoe?sst|passiert"
        r"|passieren\W+wue?rde|geschieht|zustossen\W+wue?rde|zustiesse)\b",
        r"(?:nicht|nie)\W+(?:mehr\W+)?lebend\W+(?:\w+\W+){0,2}?(?:raus|heraus|nach\W+hause)|du\W+bist\W+(?:der|die)\W+nae?chste\b",
        r"gehoe?r(?:t|en|st)\W+(?:\w+\W+){0,3}?(?:erschossen|vergast|aufgehae?ngt|verbrannt|an\W+die\W+wand|ins\W+gas"
        r"|umgebracht|erschlagen|ausgerottet|ins\W+lager)\b",
        rf"(?:sollte|mue?sste)\w*\W+(?:man\W+)?(?:\w+\W+){{0,4}}?{_DE_KILL}\b",
    ),
    _build(
        "de_hate",
        HATE,
        _LIKELY,
        r"(?:kanake\w*|neger\w*|schwuchtel\w*|kameltreiber\w*|ziegenficker\w*|judensau|judenpack|zigeunerpack|untermensch\w*"
        r"|schlitzauge\w*|bimbos?|auslae?nderpack|scheisstue?rk\w*|scheissauslae?nder\w*|scheissjude\w*|transe[n]?)\b",
        rf"(?:scheiss|drecks|verdammte[nrs]?|dreckige[nrs]?|verfluchte[nrs]?)\W?{_DE_GROUPS}\b",
        rf"{_DE_GROUPS}\W+(?:raus|ins\W+gas|vergasen|an\W+die\W+wand|abschieben)\b",
        rf"{_DE_GROUPS}\W+(?:sind|ist)\W+(?:\w+\W+){{0,3}}?(?:kriminell\w*|verbrecher|dreck|abschaum|ungeziefer|parasiten|tiere"
        r"|schmarotzer|vergewaltiger|minderwertig\w*|diebe|affen|terroristen|faul|dumm|pack)\b",
        r"geh\w*\W+(?:\w+\W+){0,2}?zurue?ck\W+(?:in|nach|dahin|dorthin|wo)\W+(?:\w+\W+){0,2}?(?:land|heimat|afrika|herkommst"
        r"|hergekommen)\b",
        r"(?:die|alle|diese|solche)\W+\w{4,}\W+sind\W+(?:alle\W+|doch\W+|nur\W+|nichts\W+als\W+|eine?\W+)*(?:abschaum|ungeziefer"
        r"|schmarotzer|dreck|pack|gesindel|plage|seuche|kakerlaken|untermenschen)\b|sind\W+keine\W+(?:richtigen\W+)?menschen\b",
        r"vermehren\W+sich\W+wie\W+(?:die\W+)?(?:ratten|karnickel|ungeziefer)\b",
        r"frauen\W+gehoe?ren\W+(?:in\W+die\W+kue?che|an\W+den\W+herd|hinter\W+den\W+herd)\b",
    ),
)

RULES: tuple[Rule, ...] = (_MASKED, *_ENGLISH, *_SPANISH, *_GERMAN)
