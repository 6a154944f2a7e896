//! speedscope's file format, which Firefox Profiler can read too.

use flatout_profile::{Clock, Kind, Profile};
use serde::Serialize;

#[derive(Serialize)]
struct SpeedscopeFile<'p> {
    #[serde(rename = "$schema")]
    schema: &'static str,
    exporter: &'static str,
    name: &'p str,
    shared: Shared,
    profiles: [Sampled<'p>; 1],
}

#[derive(Serialize)]
struct Shared {
    frames: Vec<SpeedscopeFrame>,
}

#[derive(Serialize)]
struct SpeedscopeFrame {
    name: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Sampled<'p> {
    r#type: &'static str,
    name: &'p str,
    unit: &'static str,
    start_value: u64,
    end_value: u64,
    samples: Vec<&'p [u32]>,
    weights: Vec<u64>,
}

/// A profile for <https://www.speedscope.app>: a `sampled` profile with one sample per stack. Kernel functions end in
/// ` [kernel]`.
///
/// # Source
/// <https://www.speedscope.app/file-format-schema.json>
pub fn speedscope(profile: &Profile) -> String {
    let frames = profile.stacks.frames().iter().map(|frame| SpeedscopeFrame {
        name: match frame.kind {
            Kind::Kernel => format!("{} [kernel]", frame.name),
            Kind::Root | Kind::User | Kind::Inlined => frame.name.clone(),
        },
    });
    let (samples, weights) = profile.stacks.indexed().unzip();
    let file = SpeedscopeFile {
        schema: "https://www.speedscope.app/file-format-schema.json",
        exporter: concat!("flatout ", env!("CARGO_PKG_VERSION")),
        name: &profile.what,
        shared: Shared { frames: frames.collect() },
        profiles: [Sampled {
            r#type: "sampled",
            name: &profile.what,
            unit: match profile.clock {
                Clock::CpuTime => "nanoseconds",
                Clock::Cycles => "none",
            },
            start_value: 0,
            end_value: profile.stacks.weight(),
            samples,
            weights,
        }],
    };
    // It contains only strings, numbers and lists, so serializing cannot fail.
    serde_json::to_string(&file).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flame::scripted;

    #[test]
    fn the_output_matches_the_schema() {
        let text = speedscope(&scripted::profile(None, 5));
        let file: serde_json::Value = serde_json::from_str(&text).unwrap();
        let profile = &file["profiles"][0];
        assert_eq!(profile["type"], "sampled");
        assert_eq!(profile["unit"], "nanoseconds");
        assert_eq!((&profile["startValue"], &profile["endValue"]), (&0.into(), &7_000_005.into()));
        let (samples, weights) =
            (profile["samples"].as_array().unwrap(), profile["weights"].as_array().unwrap());
        assert_eq!((samples.len(), weights.len()), (4, 4));
        let frames = file["shared"]["frames"].as_array().unwrap();
        let indices = samples.iter().flat_map(|sample| sample.as_array().unwrap());
        assert!(indices.clone().all(|index| (index.as_u64().unwrap() as usize) < frames.len()));
        assert!(frames.iter().any(|frame| frame["name"] == "tcp_sendmsg [kernel]"));
    }
}
