//! Makes a small speech model with random weights, and a sound as its input, so that whisper.cpp has work.
//!
//! The file has the layout of whisper.cpp's loader: a header of numbers, mel filters, a vocabulary, then tensors with a head each. The model's output
//! has no meaning, but depends on every layer. The same seed gives the same bytes.

use crate::model::{half, word};
use crate::random::Random;

const SEED: u64 = 3;
/// The English vocabulary: whisper.cpp derives its control tokens from this number.
const VOCABULARY: i32 = 51_864;
/// The first control token; every token below is a word.
const END_OF_TEXT: i32 = 50_256;
const MELS: i32 = 80;
/// One more than half of the window of 400 samples.
const FREQUENCIES: i32 = 201;
/// 30 seconds, as the program prepares them.
const AUDIO_CONTEXT: i32 = 1500;
/// The program prints half as many words, less a few.
const TEXT_CONTEXT: i32 = 64;
const WIDTH: i32 = 64;
const HEADS: i32 = 2;
const LAYERS: i32 = 2;
/// The format's number for weights in 16 bits, and for the types of tensors.
const F32: i32 = 0;
const F16: i32 = 1;

const SAMPLE_RATE: u32 = 16_000;
const SECONDS: u32 = 3;

/// The model file's bytes: 7 MB.
#[must_use]
pub(super) fn model() -> Vec<u8> {
    let mut file = File { bytes: Vec::new(), random: Random::new(SEED) };
    file.bytes.extend(0x6767_6d6c_u32.to_le_bytes());
    file.numbers(&[
        VOCABULARY,
        AUDIO_CONTEXT,
        WIDTH,
        HEADS,
        LAYERS,
        TEXT_CONTEXT,
        WIDTH,
        HEADS,
        LAYERS,
        MELS,
        F16,
    ]);
    file.filters();
    file.vocabulary();
    file.encoder();
    file.decoder();
    file.bytes
}

/// A WAV file of three seconds: a rising tone that comes and goes.
#[must_use]
pub(super) fn speech() -> Vec<u8> {
    let samples: Vec<i16> = (0..SAMPLE_RATE * SECONDS)
        .map(|number| {
            let time = f64::from(number) / f64::from(SAMPLE_RATE);
            let loudness = (time * 7.0).sin().abs() * 9000.0;
            ((time * (700.0 + 900.0 * time)).sin() * loudness) as i16
        })
        .collect();
    let length = u32::try_from(samples.len() * 2).unwrap_or_default();
    let mut file = Vec::new();
    file.extend(b"RIFF");
    file.extend((36 + length).to_le_bytes());
    file.extend(b"WAVEfmt ");
    file.extend(16u32.to_le_bytes());
    // PCM, one channel.
    file.extend([1u16, 1].map(u16::to_le_bytes).concat());
    file.extend([SAMPLE_RATE, SAMPLE_RATE * 2].map(u32::to_le_bytes).concat());
    // Bytes per frame, bits per sample.
    file.extend([2u16, 16].map(u16::to_le_bytes).concat());
    file.extend(b"data");
    file.extend(length.to_le_bytes());
    file.extend(samples.iter().flat_map(|sample| sample.to_le_bytes()));
    file
}

struct File {
    bytes: Vec<u8>,
    random: Random,
}

impl File {
    fn numbers(&mut self, numbers: &[i32]) {
        self.bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    }

    /// Triangles side by side over the lower frequencies.
    fn filters(&mut self) {
        self.numbers(&[MELS, FREQUENCIES]);
        for mel in 0..MELS {
            for frequency in 0..FREQUENCIES {
                let distance = (frequency - 2 * mel - 2).abs() as f32;
                self.bytes.extend((1.0 - distance / 2.0).max(0.0).to_le_bytes());
            }
        }
    }

    fn vocabulary(&mut self) {
        self.numbers(&[END_OF_TEXT]);
        for number in 0..END_OF_TEXT as u32 {
            // The program looks up the blank, so that its output never begins with it.
            let text = match number {
                0 => " ".to_owned(),
                _ => format!(" {}{}", word(number % 4096), word(number / 4096)),
            };
            self.bytes.extend(u32::try_from(text.len()).unwrap_or_default().to_le_bytes());
            self.bytes.extend(text.as_bytes());
        }
    }

    fn encoder(&mut self) {
        self.random_tensor("encoder.positional_embedding", &[WIDTH, AUDIO_CONTEXT], F32, 0.3);
        for (layer, inputs) in [(1, MELS), (2, WIDTH)] {
            let spread = 1.5 / (3.0 * inputs as f32).sqrt();
            self.random_tensor(&format!("encoder.conv{layer}.weight"), &[3, inputs, WIDTH], F16, spread);
            self.random_tensor(&format!("encoder.conv{layer}.bias"), &[1, WIDTH], F32, 0.1);
        }
        for layer in 0..LAYERS {
            let block = format!("encoder.blocks.{layer}");
            self.attention(&format!("{block}.attn"));
            self.feed_forward(&block);
        }
        self.norm("encoder.ln_post");
    }

    fn decoder(&mut self) {
        self.random_tensor("decoder.positional_embedding", &[WIDTH, TEXT_CONTEXT], F32, 0.3);
        self.random_tensor("decoder.token_embedding.weight", &[WIDTH, VOCABULARY], F16, 0.3);
        for layer in 0..LAYERS {
            let block = format!("decoder.blocks.{layer}");
            self.attention(&format!("{block}.attn"));
            self.attention(&format!("{block}.cross_attn"));
            self.feed_forward(&block);
        }
        self.norm("decoder.ln");
    }

    fn attention(&mut self, name: &str) {
        self.norm(&format!("{name}_ln"));
        for part in ["query", "key", "value", "out"] {
            self.linear(&format!("{name}.{part}"), WIDTH, WIDTH, part != "key");
        }
    }

    fn feed_forward(&mut self, block: &str) {
        self.norm(&format!("{block}.mlp_ln"));
        self.linear(&format!("{block}.mlp.0"), WIDTH, 4 * WIDTH, true);
        self.linear(&format!("{block}.mlp.2"), 4 * WIDTH, WIDTH, true);
    }

    fn linear(&mut self, name: &str, inputs: i32, outputs: i32, biased: bool) {
        // The weights are strong enough to outweigh the last word, which the decoder would otherwise repeat.
        let spread = 2.0 / (inputs as f32).sqrt();
        self.random_tensor(&format!("{name}.weight"), &[inputs, outputs], F16, spread);
        if biased {
            self.random_tensor(&format!("{name}.bias"), &[outputs], F32, 0.1);
        }
    }

    fn norm(&mut self, name: &str) {
        for (part, value) in [("weight", 1f32), ("bias", 0.0)] {
            self.head(&format!("{name}.{part}"), &[WIDTH], F32);
            (0..WIDTH).for_each(|_| self.bytes.extend(value.to_le_bytes()));
        }
    }

    fn random_tensor(&mut self, name: &str, dimensions: &[i32], kind: i32, spread: f32) {
        self.head(name, dimensions, kind);
        for _ in 0..dimensions.iter().product::<i32>() {
            // Uniform in -1..1, whose standard deviation is 0.577.
            let uniform = (self.random.word() >> 40) as f32 / (1u32 << 23) as f32 - 1.0;
            let value = uniform * spread / 0.577;
            match kind {
                F32 => self.bytes.extend(value.to_le_bytes()),
                _ => self.bytes.extend(half_of_either_sign(value).to_le_bytes()),
            }
        }
    }

    fn head(&mut self, name: &str, dimensions: &[i32], kind: i32) {
        let count = |length: usize| i32::try_from(length).unwrap_or_default();
        self.numbers(&[count(dimensions.len()), count(name.len()), kind]);
        self.numbers(dimensions);
        self.bytes.extend(name.as_bytes());
    }
}

fn half_of_either_sign(value: f32) -> u16 {
    let sign = u16::from(value.is_sign_negative()) << 15;
    // A value that is too small for a normal number becomes zero.
    sign | if value.abs() < 1e-4 { 0 } else { half(value.abs()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_always_the_same_and_small() {
        let first = model();
        assert!(first == model() && first.len() < 9_000_000, "{} bytes", first.len());
    }

    #[test]
    fn halves_keep_their_sign_and_do_not_grow_when_small() {
        assert_eq!(half_of_either_sign(-0.5), 0xb800);
        assert_eq!(half_of_either_sign(1e-6), 0);
    }

    #[test]
    fn the_recording_has_the_length_its_head_names() {
        let file = speech();
        assert_eq!(file.len(), 44 + (SAMPLE_RATE * SECONDS * 2) as usize);
        assert!(file[44..].iter().any(|&byte| byte != 0));
    }
}
