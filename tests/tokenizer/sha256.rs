//! SHA-256 (FIPS 180-4), enough to compare with the golden hashes without another dependency.

const FIRST_PRIMES: usize = 64;

/// Lower-case hex digest.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let (round, mut state) = constants();
    let mut padded = bytes.to_vec();
    padded.push(0x80);
    padded.resize(padded.len().next_multiple_of(64), 0);
    if padded.len() - bytes.len() < 9 {
        padded.resize(padded.len() + 64, 0);
    }
    let end = padded.len() - 8;
    padded[end..].copy_from_slice(&(bytes.len() as u64 * 8).to_be_bytes());
    for block in padded.chunks_exact(64) {
        compress(&mut state, &round, block);
    }
    state.iter().map(|word| format!("{word:08x}")).collect()
}

/// Round constants and initial state: fractions of the cube and square roots of the first primes.
fn constants() -> ([u32; 64], [u32; 8]) {
    let mut primes: Vec<u128> = Vec::new();
    let mut n = 2;
    while primes.len() < FIRST_PRIMES {
        if primes.iter().all(|p| n % p != 0) {
            primes.push(n);
        }
        n += 1;
    }
    let cube = |p: u128| root(p << 96, 3) as u32;
    let square = |p: u128| root(p << 64, 2) as u32;
    (
        std::array::from_fn(|i| cube(primes[i])),
        std::array::from_fn(|i| square(primes[i])),
    )
}

/// Integer part of the `degree`-th root.
fn root(n: u128, degree: u32) -> u128 {
    let (mut low, mut high) = (0_u128, 1 << 40);
    while high - low > 1 {
        let middle = (low + high) / 2;
        if middle.pow(degree) <= n {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

fn compress(state: &mut [u32; 8], round: &[u32; 64], block: &[u8]) {
    let mut w = [0_u32; 64];
    for (word, bytes) in w.iter_mut().zip(block.chunks_exact(4)) {
        *word = bytes
            .iter()
            .fold(0, |word, byte| (word << 8) | u32::from(*byte));
    }
    for i in 16..64 {
        let (a, b) = (w[i - 15], w[i - 2]);
        let s0 = a.rotate_right(7) ^ a.rotate_right(18) ^ (a >> 3);
        let s1 = b.rotate_right(17) ^ b.rotate_right(19) ^ (b >> 10);
        w[i] = w[i - 16]
            .wrapping_add(s0)
            .wrapping_add(w[i - 7])
            .wrapping_add(s1);
    }
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = *state;
    for i in 0..64 {
        let s1 = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
        let choice = (e & f) ^ (!e & g);
        let t1 = h
            .wrapping_add(s1)
            .wrapping_add(choice)
            .wrapping_add(round[i])
            .wrapping_add(w[i]);
        let s0 = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
        let majority = (a & b) ^ (a & c) ^ (b & c);
        (h, g, f, e) = (g, f, e, d.wrapping_add(t1));
        (d, c, b, a) = (c, b, a, t1.wrapping_add(s0.wrapping_add(majority)));
    }
    for (word, add) in state.iter_mut().zip([a, b, c, d, e, f, g, h]) {
        *word = word.wrapping_add(add);
    }
}

#[test]
fn digests_match_the_published_examples() {
    let cases: [(&str, &str); 3] = [
        (
            "",
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        ),
        (
            "abc",
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        ),
        (
            "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
        ),
    ];
    for (text, digest) in cases {
        assert_eq!(hex(text.as_bytes()), digest, "{text:?}");
    }
}
