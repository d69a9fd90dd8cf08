"""Texts on which implementations of one tokenizer part: what every engine is compared on, whatever the corpus.

They are short, so that all of them cost some milliseconds: white space of every kind and length, numbers, apostrophes,
letters that are written in two ways, scripts without spaces, emoji made of several characters, control characters, and
what vocabularies write for bytes and spaces.
"""

EDGE_CASES = (
    *("", " ", "a", " leading", "trailing ", "two  spaces", " " * 300, "\n" * 100, "\t\t tab", "\r\n"),
    *("a \n b\n\n\n c\r\n\r\nd \r e", "if x:\n\treturn\t1\n    # é\n", "\0", "a\0b\0\0", "\x7f\x1b[0m", "\ufeffmark"),
    *("nbsp\u00a0here", "line\u2028 para\u2029 \u3000wide\u200b", "1234567890" * 30, "x" * 3000),
    *("1 22 333 4444 3.14159 1e-9 ①²½ ٣٤٥", "don't DON'T I'LL we'Ve 'S \u017f's '"),
    *("CamelCase snake_case kebab-case HTTPServer", "¿¡«»…—\u2013\u2018\u2019“”", "!!!??? ... --- === ***\n"),
    *("a/b\\c@d#e$f%g^h&i*j(k)l", "é e\u0301 ñ n\u0303 Å A\u030a \u0301\u0301", "\ufb01 \uff76\uff9e ㎏ \u2167"),
    *(
        "naïve Straße \u03a3\u0391\u03a3 İstanbul ǅ",
        "한국어 각 \u1112\u1161\u11ab",
        "東京都は日本の首都。中文\uff0c标点\uff01",
    ),
    *("ไทยไม่มีช่องว่าง", "हिन्दी क्षि", "العربية مُشَكَّلَة", "עברית שָׁלוֹם", "привет МИР"),
    *("👍🏽 👩\u200d👩\u200d👧\u200d👦 🇫🇷🇯🇵 ❤\ufe0f 1\ufe0f\u20e3 😀😀", "\U0010ffff\ue000\ufffd"),
    *("▁meta ▁▁ space▁", "Ġ Ċ Ã©", "<0x0A><0xE2>"),
)
