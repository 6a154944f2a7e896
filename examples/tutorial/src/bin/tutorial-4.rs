// Step 4 of docs/tutorial.md.
include!(concat!(env!("OUT_DIR"), "/4/main.rs"));
