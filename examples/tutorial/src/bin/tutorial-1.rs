// Step 1 of docs/tutorial.md.
include!(concat!(env!("OUT_DIR"), "/1/main.rs"));
