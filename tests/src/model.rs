//! Makes a small language model with random weights, so that llama.cpp has something to compute.
//!
//! The file is a GGUF, version 3, of the llama architecture: weights in Q8_0, norms in F32, and a vocabulary of invented
//! words over single bytes. The same seed gives the same bytes. Field names are those of llama.cpp's loader.

use crate::random::Random;

/// The model's shape.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Transformer layers.
    pub layers: u32,
    /// Width of the residual stream; a multiple of 32 and of `heads`.
    pub embedding: u32,
    /// Width of the feed-forward layers; a multiple of 32.
    pub feed_forward: u32,
    /// Attention heads.
    pub heads: u32,
    /// Heads for keys and values; divides `heads`.
    pub key_value_heads: u32,
    /// Invented words beside the 259 tokens every vocabulary has.
    pub words: u32,
}

impl Shape {
    /// About 2.8 MB; generates a token in milliseconds even on an emulated machine.
    pub const SMALL: Self =
        Self { layers: 4, embedding: 256, feed_forward: 512, heads: 4, key_value_heads: 2, words: 253 };

    fn vocabulary(&self) -> u32 {
        CONTROL_TOKENS + 256 + self.words
    }
}

/// `<unk>`, `<s>`, `</s>`.
const CONTROL_TOKENS: u32 = 3;
const ALIGNMENT: usize = 32;
const BLOCK: u32 = 32;

/// The model file's bytes.
#[must_use]
pub fn make(shape: &Shape, seed: u64) -> Vec<u8> {
    let tensors = tensors(shape);
    let metadata = metadata(shape);
    let mut file = Vec::new();
    file.extend(b"GGUF");
    file.extend(3u32.to_le_bytes());
    file.extend((tensors.len() as u64).to_le_bytes());
    file.extend((metadata.len() as u64).to_le_bytes());
    metadata.iter().for_each(|entry| file.extend(entry));
    let mut offset = 0u64;
    for tensor in &tensors {
        tensor.describe(offset, &mut file);
        offset += tensor.size().next_multiple_of(ALIGNMENT as u64);
    }
    let mut random = Random::new(seed);
    for tensor in &tensors {
        file.resize(file.len().next_multiple_of(ALIGNMENT), 0);
        tensor.fill(&mut random, &mut file);
    }
    file.resize(file.len().next_multiple_of(ALIGNMENT), 0);
    file
}

/// One tensor; one-dimensional ones are norms in F32, the others weights in Q8_0.
struct Tensor {
    name: String,
    dimensions: Vec<u32>,
    /// Standard deviation of the weights.
    spread: f32,
    /// This many of the first rows are zero.
    silent_rows: u32,
}

impl Tensor {
    fn elements(&self) -> u64 {
        self.dimensions.iter().map(|&length| u64::from(length)).product()
    }

    fn is_norm(&self) -> bool {
        self.dimensions.len() == 1
    }

    fn size(&self) -> u64 {
        // A Q8_0 block holds a 16-bit scale and 32 bytes.
        if self.is_norm() { self.elements() * 4 } else { self.elements() / u64::from(BLOCK) * 34 }
    }

    fn describe(&self, offset: u64, file: &mut Vec<u8>) {
        const F32: u32 = 0;
        const Q8_0: u32 = 8;
        string(&self.name, file);
        file.extend((u32::try_from(self.dimensions.len()).unwrap_or_default()).to_le_bytes());
        self.dimensions.iter().for_each(|&length| file.extend(u64::from(length).to_le_bytes()));
        file.extend(if self.is_norm() { F32 } else { Q8_0 }.to_le_bytes());
        file.extend(offset.to_le_bytes());
    }

    fn fill(&self, random: &mut Random, file: &mut Vec<u8>) {
        if self.is_norm() {
            (0..self.elements()).for_each(|_| file.extend(1f32.to_le_bytes()));
            return;
        }
        // Uniform bytes have a standard deviation of 74.
        let scale = half(self.spread / 74.0);
        let silent = u64::from(self.silent_rows) * u64::from(self.dimensions[0]) / u64::from(BLOCK);
        for block in 0..self.elements() / u64::from(BLOCK) {
            file.extend(if block < silent { 0 } else { scale }.to_le_bytes());
            for _ in 0..BLOCK / 8 {
                file.extend(random.word().to_le_bytes());
            }
        }
    }
}

fn tensors(shape: &Shape) -> Vec<Tensor> {
    let (width, inner) = (shape.embedding, shape.feed_forward);
    let key_value = width / shape.heads * shape.key_value_heads;
    let weights = |name: String, from: u32, to: u32| {
        // Outputs keep the size of inputs, so that no layer outweighs the others.
        Tensor { name, dimensions: vec![from, to], spread: 1.0 / (from as f32).sqrt(), silent_rows: 0 }
    };
    let norm = |name: String| Tensor { name, dimensions: vec![width], spread: 0.0, silent_rows: 0 };
    let mut tensors = vec![
        // Small against the additions of the layers: the next word depends on all words before, not on the last one alone.
        Tensor { spread: 0.25, ..weights("token_embd.weight".to_owned(), width, shape.vocabulary()) },
        norm("output_norm.weight".to_owned()),
        // The model generates only words, no other tokens.
        Tensor {
            silent_rows: CONTROL_TOKENS + 256,
            ..weights("output.weight".to_owned(), width, shape.vocabulary())
        },
    ];
    for layer in 0..shape.layers {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        tensors.extend([
            norm(name("attn_norm")),
            weights(name("attn_q"), width, width),
            weights(name("attn_k"), width, key_value),
            weights(name("attn_v"), width, key_value),
            weights(name("attn_output"), width, width),
            norm(name("ffn_norm")),
            weights(name("ffn_gate"), width, inner),
            weights(name("ffn_up"), width, inner),
            weights(name("ffn_down"), inner, width),
        ]);
    }
    tensors
}

/// One metadata entry each, ready to be written.
fn metadata(shape: &Shape) -> Vec<Vec<u8>> {
    let tokens = tokens(shape);
    let text = |key: &str, value: &str| entry(key, 8, |bytes| string(value, bytes));
    let number = |key: &str, value: u32| entry(key, 4, |bytes| bytes.extend(value.to_le_bytes()));
    let real = |key: &str, value: f32| entry(key, 6, |bytes| bytes.extend(value.to_le_bytes()));
    let truth = |key: &str, value: bool| entry(key, 7, |bytes| bytes.push(u8::from(value)));
    vec![
        text("general.architecture", "llama"),
        text("general.name", "random words"),
        number("general.file_type", 7),
        number("llama.block_count", shape.layers),
        number("llama.embedding_length", shape.embedding),
        number("llama.feed_forward_length", shape.feed_forward),
        number("llama.vocab_size", shape.vocabulary()),
        number("llama.context_length", 512),
        number("llama.attention.head_count", shape.heads),
        number("llama.attention.head_count_kv", shape.key_value_heads),
        real("llama.attention.layer_norm_rms_epsilon", 1e-5),
        number("llama.rope.dimension_count", shape.embedding / shape.heads),
        real("llama.rope.freq_base", 10_000.0),
        text("tokenizer.ggml.model", "llama"),
        array("tokenizer.ggml.tokens", 8, &tokens, |token, bytes| string(&token.text, bytes)),
        array("tokenizer.ggml.scores", 6, &tokens, |token, bytes| bytes.extend(token.score.to_le_bytes())),
        array("tokenizer.ggml.token_type", 5, &tokens, |token, bytes| bytes.extend(token.kind.to_le_bytes())),
        number("tokenizer.ggml.unknown_token_id", 0),
        number("tokenizer.ggml.bos_token_id", 1),
        number("tokenizer.ggml.eos_token_id", 2),
        truth("tokenizer.ggml.add_bos_token", true),
        truth("tokenizer.ggml.add_eos_token", false),
    ]
}

struct Token {
    text: String,
    score: f32,
    kind: i32,
}

/// Control tokens, one token per byte (any prompt can be spelt with them), then the words.
fn tokens(shape: &Shape) -> Vec<Token> {
    const NORMAL: i32 = 1;
    const UNKNOWN: i32 = 2;
    const CONTROL: i32 = 3;
    const BYTE: i32 = 6;
    let mut tokens: Vec<Token> = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)]
        .map(|(text, kind)| Token { text: text.to_owned(), score: 0.0, kind })
        .into();
    tokens.extend((0..=255u8).map(|byte| Token { text: format!("<0x{byte:02X}>"), score: 0.0, kind: BYTE }));
    // U+2581 marks a word's start in this kind of vocabulary.
    tokens.extend((0..shape.words).map(|number| Token {
        text: format!("\u{2581}{}", word(number)),
        score: -1.0,
        kind: NORMAL,
    }));
    tokens
}

/// Two or three syllables.
pub(crate) fn word(number: u32) -> String {
    const SYLLABLES: [&str; 16] =
        ["ba", "do", "fi", "gu", "ha", "jo", "ki", "lu", "ma", "no", "pi", "ru", "sa", "to", "vi", "zu"];
    let syllable = |shift: u32| SYLLABLES[(number >> shift) as usize % SYLLABLES.len()];
    let more = [8, 12].into_iter().filter(|shift| number >> shift > 0).map(syllable);
    [syllable(4), syllable(0)].into_iter().chain(more).collect()
}

fn entry(key: &str, kind: u32, value: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    string(key, &mut bytes);
    bytes.extend(kind.to_le_bytes());
    value(&mut bytes);
    bytes
}

fn array<T>(key: &str, kind: u32, items: &[T], item: impl Fn(&T, &mut Vec<u8>)) -> Vec<u8> {
    const ARRAY: u32 = 9;
    entry(key, ARRAY, |bytes| {
        bytes.extend(kind.to_le_bytes());
        bytes.extend((items.len() as u64).to_le_bytes());
        items.iter().for_each(|value| item(value, bytes));
    })
}

fn string(text: &str, bytes: &mut Vec<u8>) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

/// A positive normal number as IEEE 754 binary16, cut off.
pub(crate) fn half(value: f32) -> u16 {
    let bits = value.to_bits();
    let exponent = (bits >> 23).saturating_sub(127 - 15);
    u16::try_from(exponent << 10 | bits >> 13 & 0x3ff).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_model() {
        assert_eq!(make(&Shape::SMALL, 1), make(&Shape::SMALL, 1));
        assert_ne!(make(&Shape::SMALL, 1), make(&Shape::SMALL, 2));
    }

    #[test]
    fn the_model_stays_small() {
        assert!(make(&Shape::SMALL, 1).len() < 4_000_000);
    }

    #[test]
    fn scales_are_binary16() {
        assert_eq!(half(1.0), 0x3c00);
        assert_eq!(half(0.5), 0x3800);
        assert_eq!(half(1.5), 0x3e00);
    }

    #[test]
    fn words_differ() {
        let words: std::collections::BTreeSet<String> = (0..1 << 16).map(word).collect();
        assert_eq!(words.len(), 1 << 16);
    }
}
