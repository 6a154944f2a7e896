// Step 2 of docs/tutorial.md.
include!(concat!(env!("OUT_DIR"), "/2/main.rs"));
