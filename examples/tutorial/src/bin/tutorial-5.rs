// Step 5 of docs/tutorial.md.
include!(concat!(env!("OUT_DIR"), "/5/main.rs"));
