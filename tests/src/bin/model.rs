//! Writes a random-weight model for llama.cpp: `model FILE`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;
use tests::model::{Shape, make};

#[derive(Parser)]
#[command(about = "Write a random-weight language model for llama.cpp")]
struct Arguments {
    file: PathBuf,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[arg(long, default_value_t = Shape::SMALL.layers)]
    layers: u32,
    #[arg(long, default_value_t = Shape::SMALL.embedding)]
    embedding: u32,
    #[arg(long, default_value_t = Shape::SMALL.feed_forward)]
    feed_forward: u32,
    #[arg(long, default_value_t = Shape::SMALL.heads)]
    heads: u32,
    #[arg(long, default_value_t = Shape::SMALL.key_value_heads)]
    key_value_heads: u32,
    #[arg(long, default_value_t = Shape::SMALL.words, value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    words: u32,
}

fn main() -> Result<()> {
    let Arguments { file, seed, layers, embedding, feed_forward, heads, key_value_heads, words } =
        Arguments::parse();
    let shape = Shape { layers, embedding, feed_forward, heads, key_value_heads, words };
    Ok(std::fs::write(file, make(&shape, seed))?)
}
