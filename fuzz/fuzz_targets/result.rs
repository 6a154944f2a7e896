//! Result files of climbs and profiles from untrusted sources. An accepted file can be drawn, and written and read
//! again.

use flatout_report::{ResultOrigin, climb, flame};

pub fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(found) = climb::from_json(text) {
        let _ = (climb::text::text(&found), climb::html::html(&found));
        if let Err(why) = climb::from_json(&climb::json::json(&found)) {
            panic!("what was written is not read: {why}");
        }
    }
    if let Ok(found) = flame::from_json(text) {
        let page = flame::page(&found, &ResultOrigin::default());
        let _ = (flame::table(&found), flame::folded(&found), page, flame::speedscope(&found));
        if let Err(why) = flame::from_json(&flame::to_json(&found)) {
            panic!("what was written is not read: {why}");
        }
    }
}
