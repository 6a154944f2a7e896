//! Flags and files as they are read, and each mistake as it is shown.
