//! CPU time to compress JSON of 1, 4, 16 and 64 KiB, for each response, as a worker does it. The first argument names a coding and a level
//! (`gzip=5` by default); the second one is how many responses of each size there are.
//!
//! ```sh
//! cargo run --release -p flatout-compress --example cost -- gzip=2 20000
//! ```

use std::io::Write;
use std::time::Instant;

use flatout_compress::{Compress, Level, Rules};
use flatout_engine::Response;
use flatout_wire::accept::Coding;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let chosen = arguments.next().unwrap_or_else(|| "gzip=5".to_owned());
    let count: u32 = arguments.next().map_or(Ok(20_000), |text| text.parse())?;
    let (coding, level) = chosen.split_once('=').ok_or("need a coding and a level, such as gzip=5")?;
    let coding = match coding {
        "gzip" => Coding::Gzip,
        "br" => Coding::Brotli,
        "zstd" => Coding::Zstd,
        _ => return Err("need gzip, br or zstd".into()),
    };
    let levels = vec![Level { coding, level: level.parse()? }];
    let rules = Rules::new(Compress { levels, ..Compress::default() });
    let text = records(64 << 10);
    for kib in [1, 4, 16, 64] {
        let plain = text.get(..kib << 10).unwrap_or_default();
        let mut sent = 0;
        let began = Instant::now();
        for _ in 0..count {
            let mut response = Response::new();
            response.header("Content-Type", "application/json");
            response.buffer().extend_from_slice(plain);
            rules.apply(false, Some(coding.token().as_bytes()), |_, _| None, &mut response);
            sent = response.body_bytes().map_or(0, <[u8]>::len);
        }
        let us = began.elapsed().as_secs_f64() * 1e6 / f64::from(count);
        writeln!(std::io::stdout(), "{kib:>2} KiB: {us:7.2} us, {sent:>6} bytes")?;
    }
    Ok(())
}

/// Records as an API lists them.
fn records(bytes: usize) -> Vec<u8> {
    const WORDS: [&str; 8] = ["amber", "basalt", "cedar", "delta", "ember", "fjord", "granite", "harbour"];
    let (mut text, mut seed) = (String::from("["), 1u64);
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    for id in 0.. {
        let word = WORDS.get(random(8) as usize).copied().unwrap_or_default();
        let (price, stock) = (random(100_000), random(500));
        text += &format!(
            "{{\"id\":{id},\"name\":\"{word} {stock}\",\"price\":{}.{:02},\"in_stock\":{}}},",
            price / 100,
            price % 100,
            stock > 100
        );
        if text.len() >= bytes {
            break;
        }
    }
    text.truncate(bytes);
    text.into_bytes()
}
