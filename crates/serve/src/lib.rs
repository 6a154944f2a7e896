#![cfg_attr(not(doc), allow(missing_docs))]
