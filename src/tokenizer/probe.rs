//! Texts on which two encoders must agree before one may stand in for the other.
//!
//! Deterministic: the same tokenizer gives the same texts everywhere. About 300 KB in all, a fraction
//! of a second for the slower encoder.

use tokenizers::Tokenizer;

/// Running text of many scripts and habits: contractions, numbers, code, white space of all kinds,
/// combining marks in both orders, right-to-left, emoji sequences, template-like markers.
const PROSE: [&str; 24] = [
    "",
    " ",
    "\n",
    "All human beings are born free and equal in dignity and rights.",
    "  two leading, two trailing  ",
    "I'm he'll we'd they've YOU'RE it's 'S 'T ''ll x's'nt o\u{2019}clock DON'T",
    "1 12 123 1234 12345 1234567890 3.14159 1,000,000 0x1F \u{661}\u{662}\u{663} \u{bd} \u{2167} x\u{b2}",
    "\t\ttabs\r\nlines\n\n\n  \n   indented\r\r\n \u{a0}nbsp\u{2003}em\u{3000}ideographic\u{2028}ls\u{85}nel\u{b}vt",
    "fn main() { let x: Vec<u8> = vec![0; 16]; /* no */ println!(\"{x:?}\"); } // end\n",
    "def f(a, *b, **c):\n    return {k: v for k, v in c.items() if a != b}  # \u{bb}\n\n\nclass X(Y): ...",
    "https://example.org/a/b?c=d&e=%20f#g mail@example.org C:\\dir\\file.txt $HOME ~/x ../.. a_b-c.d",
    "Zażółć gęślą jaźń. Falsches Üben von Xylophonmusik quält. Où êtes-vous née, Noël? İıſK",
    "e\u{301} E\u{300}\u{323} \u{323}\u{300} \u{1100}\u{1161}\u{11a8} \u{958} \u{212b}\u{2126} \u{fb01} \u{344} q\u{307}\u{323}",
    "Все люди рождаются свободными и равными в своём достоинстве и правах. ЁЖ",
    "人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心。「」『』〇",
    "すべての人間は、生れながらにして自由であり、ｶﾀｶﾅ カタカナ 平等である。",
    "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    "يولد جميع الناس أحراراً متساوين في الكرامة والحقوق. שלום עולם",
    "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता। มนุษย์ทั้งหลายเกิดมามีอิสระ",
    "👩‍👩‍👧 👍🏽 🇩🇪🇫🇷 ❤️ ☺ 🏴\u{e0067}\u{e0062}\u{e007f} \u{200b}\u{200d}\u{feff}\u{fffd}\u{fffe}\u{e000}\u{10ffff}",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "--------======== ########  ........ !!!!???? \u{2500}\u{2500}\u{2500}\u{2500} ((((((([[[[{{{{<<<<>>>>",
    "{\"a\": [1, 2.5e-3, null, true], \"b\": {\"c\": \"\\u00e9\\n\"}}\n```json\n| x | y |\n|---|---|\n",
    "<|x|> <x> </x> [x] <s> </s> <unk> [INST] [/INST] <<SYS>> ### User: <think>\n\n</think>\n\n",
];

/// Every probe text for a tokenizer.
pub(super) fn texts(tokenizer: &Tokenizer) -> Vec<String> {
    let mut draw = Draw(0x5eed);
    let added = added_tokens(tokenizer);
    let mut texts: Vec<String> = PROSE.iter().map(|&text| text.to_owned()).collect();
    texts.push(PROSE.join("\n"));
    texts.extend(character_texts());
    texts.extend(added.iter().map(|token| surrounded(token)));
    texts.extend(mixtures(&mut draw));
    texts.extend(vocabulary_texts(tokenizer, &added, &mut draw));
    texts
}

/// The alphabets of the world densely where they are mixed with others, and every 17th character of
/// the first two planes, which hold all that people write; each between letters, digits and spaces.
fn character_texts() -> Vec<String> {
    const DENSE: [std::ops::Range<u32>; 5] = [
        0..0x600,
        0x2000..0x2100,
        0x3000..0x3100,
        0xfe00..0xfe70,
        0xff00..0x1_0000,
    ];
    let sparse = (0..0x2_0000).step_by(17);
    let points = DENSE.into_iter().flatten().chain(sparse);
    let chars: Vec<char> = points.filter_map(char::from_u32).collect();
    let inside = |c: &char| format!("a{c}1 {c}{c}b\n{c} ");
    let text = |chars: &[char]| chars.iter().map(inside).collect();
    chars.chunks(64).map(text).collect()
}

/// The contents of added tokens: some thousand at most, evenly spread.
fn added_tokens(tokenizer: &Tokenizer) -> Vec<String> {
    let decoder = tokenizer.get_added_tokens_decoder();
    let mut tokens: Vec<_> = decoder.into_iter().collect();
    tokens.sort_by_key(|(id, _)| *id);
    let step = tokens.len() / 1024 + 1;
    let tokens = tokens.into_iter().step_by(step);
    tokens.map(|(_, token)| token.content).collect()
}

/// An added token inside a word, between spaces, doubled, cut short, in lines, and next to marks that
/// a normalizer could draw into it.
fn surrounded(token: &str) -> String {
    let mut short = token.chars();
    short.next_back();
    let short = short.as_str();
    format!(
        "x{token}y {token} {token}{token}\n\n{token}\n {short} \u{301}{token}\u{301}{short}{token}  1{token}"
    )
}

/// Characters of all kinds in short random order.
fn mixtures(draw: &mut Draw) -> Vec<String> {
    let mut text = |_| {
        let length = 4 + draw.below(60);
        (0..length).map(|_| draw.char()).collect()
    };
    (0..400).map(&mut text).collect()
}

/// What the vocabulary is made of, in random order, glued together and spaced.
fn vocabulary_texts(tokenizer: &Tokenizer, added: &[String], draw: &mut Draw) -> Vec<String> {
    let size = u32::try_from(tokenizer.get_vocab_size(true)).unwrap_or(u32::MAX);
    let mut piece = || match draw.below(12) {
        0 => " ".to_owned(),
        1 if !added.is_empty() => added[draw.below(added.len() as u32) as usize].clone(),
        2 => draw.char().to_string(),
        _ => tokenizer
            .decode(&[draw.below(size.max(1))], false)
            .unwrap_or_default(),
    };
    let mut text = |_| (0..24).map(|_| piece()).collect();
    (0..256).map(&mut text).collect()
}

/// A fixed sequence of numbers (SplitMix64).
struct Draw(u64);

// === impl Draw ===

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, which is above 0.
    fn below(&mut self, end: u32) -> u32 {
        let high = (u128::from(self.next()) * u128::from(end)) >> 64;
        u32::try_from(high).unwrap_or(0)
    }

    /// A character, those of everyday text more often.
    fn char(&mut self) -> char {
        const RANGES: [(u32, u32); 10] = [
            (0x20, 0x7f),
            (0x20, 0x7f),
            (0x41, 0x7b),
            (0, 0x21),
            (0x80, 0x250),
            (0x250, 0x800),
            (0x800, 0x3000),
            (0x3000, 0xd800),
            (0xe000, 0x1_0000),
            (0x1_0000, 0x2_0000),
        ];
        let (from, to) = RANGES[self.below(RANGES.len() as u32) as usize];
        char::from_u32(from + self.below(to - from)).unwrap_or(' ')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_random_texts_are_the_same_everywhere() {
        let first: Vec<String> = mixtures(&mut Draw(0x5eed));
        let second = mixtures(&mut Draw(0x5eed));
        assert_eq!(first, second);
        assert_eq!(first.len(), 400);
        assert_eq!(Draw(0).next(), 0xe220_a839_7b1d_cdaf);
    }

    #[test]
    fn characters_of_every_block_are_probed() {
        let all = character_texts().concat();
        for c in ['é', 'ё', 'א', '\u{200d}', 'あ', '\u{fe0f}', 'ｶ'] {
            assert!(all.contains(c), "{c:?}");
        }
        let planes = all.chars().filter(|c| u32::from(*c) > 0xffff).count();
        assert!(planes > 10_000, "{planes}");
    }
}
