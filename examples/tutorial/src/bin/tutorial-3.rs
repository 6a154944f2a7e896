// Step 3 of docs/tutorial.md.
include!(concat!(env!("OUT_DIR"), "/3/main.rs"));
