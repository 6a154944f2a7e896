//! A profile as a file: to store, to compare, and for other programs.

use serde_json::error::Category;
use std::time::Duration;

use flatout_profile::{Clock, Frame, Kind, Profile, Stacks};
use serde::{Deserialize, Serialize};

/// The format name in our files.
const FORMAT: &str = "flatout-profile-1";

/// The longest sampling time that a file may contain, in seconds: a year.
const SECONDS_MAX: f64 = 366.0 * 86_400.0;

/// Limits of frames, of one stack and of all together, for which a page can be made.
const STACK_FRAMES_MAX: usize = 2_000;
const FRAMES_MAX: usize = 5_000_000;

#[derive(Serialize, Deserialize)]
struct File {
    format: String,
    what: String,
    unit: UnitEntry,
    rate_hz: u32,
    seconds: f64,
    cpu_count: usize,
    sample_count: u64,
    lost_count: u64,
    idle_weight: u64,
    request_count: Option<f64>,
    notes: Vec<String>,
    /// For readers; derived from the stacks.
    #[serde(default)]
    areas: Vec<AreaEntry>,
    frames: Vec<FrameEntry>,
    stacks: Vec<StackEntry>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum UnitEntry {
    Cycles,
    CpuNs,
}

#[derive(Serialize, Deserialize)]
struct AreaEntry {
    name: String,
    weight: u64,
    per_request: Option<f64>,
}

#[derive(Serialize, Deserialize)]
struct FrameEntry {
    name: String,
    kind: KindEntry,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum KindEntry {
    Root,
    User,
    Inlined,
    Kernel,
}

#[derive(Serialize, Deserialize)]
struct StackEntry {
    /// Indices of frames, the outermost first.
    frames: Vec<u32>,
    weight: u64,
}

/// A profile as JSON.
pub fn to_json(profile: &Profile) -> String {
    let area = |cost: flatout_profile::AreaCost| AreaEntry {
        name: cost.area.name.to_owned(),
        weight: cost.weight,
        per_request: profile.per_request(cost.weight),
    };
    let frame = |frame: &Frame| FrameEntry { name: frame.name.clone(), kind: frame.kind.into() };
    let stack = |(frames, weight): (&[u32], u64)| StackEntry { frames: frames.to_vec(), weight };
    let file = File {
        format: FORMAT.to_owned(),
        what: profile.what.clone(),
        unit: match profile.clock {
            Clock::Cycles => UnitEntry::Cycles,
            Clock::CpuTime => UnitEntry::CpuNs,
        },
        rate_hz: profile.rate_hz,
        seconds: profile.time.as_secs_f64(),
        cpu_count: profile.cpu_count,
        sample_count: profile.sample_count,
        lost_count: profile.lost_count,
        idle_weight: profile.idle_weight,
        request_count: profile.request_count,
        notes: profile.notes.clone(),
        areas: profile.areas().into_iter().map(area).collect(),
        frames: profile.stacks.frames().iter().map(frame).collect(),
        stacks: profile.stacks.indexed().map(stack).collect(),
    };
    // It contains only strings, numbers and lists, so serializing cannot fail.
    serde_json::to_string(&file).unwrap_or_default()
}

/// Why a text is no profile, in our words.
fn fault(error: &serde_json::Error) -> String {
    match error.classify() {
        Category::Eof => "not a profile: it ends in the middle, or is empty".to_owned(),
        Category::Data => format!(
            "not a profile: it is JSON of another kind (line {}, column {}); `flatout profile --json` writes profiles",
            error.line(),
            error.column()
        ),
        Category::Syntax | Category::Io => {
            format!("not a profile: it is not JSON (line {}, column {})", error.line(), error.column())
        }
    }
}

/// Parses the output of [`to_json`].
///
/// # Errors
/// What is wrong with the text; invalid JSON with line and column.
pub fn from_json(text: &str) -> Result<Profile, String> {
    let file: File = serde_json::from_str(text).map_err(|error| fault(&error))?;
    if file.format != FORMAT {
        return Err(format!("not a profile: its format is `{}`, need `{FORMAT}`", file.format));
    }
    if !(0.0..=SECONDS_MAX).contains(&file.seconds) {
        return Err(format!("not a profile: got {} seconds", file.seconds));
    }
    let frames: Vec<Frame> =
        file.frames.into_iter().map(|frame| Frame::new(frame.kind.into(), frame.name)).collect();
    let deepest = file.stacks.iter().map(|stack| stack.frames.len()).max().unwrap_or(0);
    if deepest > STACK_FRAMES_MAX {
        return Err(format!(
            "not a profile: it has a stack of {deepest} frames, more than {STACK_FRAMES_MAX}"
        ));
    }
    let all: usize = file.stacks.iter().map(|stack| stack.frames.len()).sum();
    if all > FRAMES_MAX {
        return Err(format!("not a profile: its stacks have {all} frames, more than {FRAMES_MAX}"));
    }
    let mut stacks = Stacks::default();
    for stack in file.stacks {
        let named: Option<Vec<Frame>> =
            stack.frames.iter().map(|&index| frames.get(index as usize).cloned()).collect();
        let named = named.ok_or_else(|| {
            format!("not a profile: a stack names a frame that is not among the {}", frames.len())
        })?;
        stacks.add(named, stack.weight);
    }
    Ok(Profile {
        what: file.what,
        clock: match file.unit {
            UnitEntry::Cycles => Clock::Cycles,
            UnitEntry::CpuNs => Clock::CpuTime,
        },
        rate_hz: file.rate_hz,
        time: Duration::from_secs_f64(file.seconds),
        cpu_count: file.cpu_count,
        sample_count: file.sample_count,
        lost_count: file.lost_count,
        idle_weight: file.idle_weight,
        request_count: file.request_count,
        notes: file.notes,
        stacks,
    })
}

impl From<Kind> for KindEntry {
    fn from(kind: Kind) -> KindEntry {
        match kind {
            Kind::Root => KindEntry::Root,
            Kind::User => KindEntry::User,
            Kind::Inlined => KindEntry::Inlined,
            Kind::Kernel => KindEntry::Kernel,
        }
    }
}

impl From<KindEntry> for Kind {
    fn from(kind: KindEntry) -> Kind {
        match kind {
            KindEntry::Root => Kind::Root,
            KindEntry::User => Kind::User,
            KindEntry::Inlined => Kind::Inlined,
            KindEntry::Kernel => Kind::Kernel,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flame::scripted;

    #[test]
    fn written_files_can_be_read_again() {
        let profile = scripted::profile(Some(123.0), 5);
        let again = from_json(&to_json(&profile)).unwrap();
        assert!(again.stacks.iter().eq(profile.stacks.iter()));
        assert_eq!(
            Profile { stacks: Stacks::default(), ..again },
            Profile { stacks: Stacks::default(), ..profile }
        );
    }

    #[test]
    fn malformed_files_are_reported() {
        let good = to_json(&scripted::profile(None, 5));
        for (broken, expected) in [
            (String::new(), "not a profile: it ends in the middle"),
            ("[1, 2]".to_owned(), "not a profile: it is JSON of another kind"),
            ("\n=== x".to_owned(), "not a profile: it is not JSON (line 2, column 1)"),
            (good.replace(FORMAT, "other"), "its format is `other`"),
            (good.replace("\"frames\":[0", "\"frames\":[999"), "names a frame that is not among"),
            (good.replace("\"frames\":[0", &format!("\"frames\":[{}0", "0,".repeat(2000))), "a stack of 200"),
            (good.replace("10.04", "-1.0"), "got -1 seconds"),
            (good.replace("10.04", "1e300"), "seconds"),
            (good.replace("\"rate_hz\":499", "\"rate_hz\":-4"), "another kind"),
        ] {
            let message = from_json(&broken).unwrap_err();
            assert!(message.contains(expected), "{message}");
        }
        for end in 0..good.len() {
            assert!(from_json(good.get(..end).unwrap_or("")).is_err());
        }
    }
}
