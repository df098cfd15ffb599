//! Compares our codec with the crate `kafka-protocol`, the oracle: each reads the bytes of the other, in every version
//! that both have.

use crate::recode::recode;
use crate::schema::{Dice, Schema, Side, every_message};
use bytes::{Bytes, BytesMut};
use fullbore_wire::api::ApiKey;
use fullbore_wire::{DecodeError, Version};
use kafka_protocol::messages::{ApiKey as OracleKey, RequestKind, ResponseKind};
use proptest::prelude::*;

/// Versions that we have and the oracle lacks. The oracle has the versions of Kafka 4.1.
const NOT_IN_ORACLE: &[(ApiKey, i16)] = &[
    // KIP-1269, which is not released yet.
    (ApiKey::Produce, 14),
    // KIP-1023.
    (ApiKey::ListOffsets, 11),
    // Topic ids, which are not stable in Kafka 4.1.
    (ApiKey::OffsetCommit, 10),
    (ApiKey::OffsetFetch, 10),
    // KIP-1228.
    (ApiKey::WriteTxnMarkers, 2),
    // Cordoned directories (KIP-1066).
    (ApiKey::DescribeLogDirs, 5),
    // Error messages, which exist since Kafka 4.4.
    (ApiKey::DeleteGroups, 3),
];

/// Fields that no version of the oracle has.
const FIELDS_NOT_IN_ORACLE: &[(ApiKey, &str)] = &[
    (ApiKey::Produce, "reorder"),
    (ApiKey::Produce, "endstransaction"),
    (ApiKey::Produce, "reorderbatches"),
    (ApiKey::Produce, "maxidempotencebatchestoretain"),
    (ApiKey::Produce, "producerstatebatchestoretain"),
    (ApiKey::Fetch, "process"),
    (ApiKey::Fetch, "readahead"),
    (ApiKey::Fetch, "nextoffset"),
    (ApiKey::AddPartitionsToTxn, "coordinatorepoch"),
    (ApiKey::ListTransactions, "namesserved"),
    (ApiKey::Fetch, "carriedout"),
    (ApiKey::Fetch, "readon"),
    (ApiKey::Fetch, "inepoch"),
    (ApiKey::Fetch, "requestedin"),
    (ApiKey::Fetch, "fromoffset"),
    (ApiKey::Fetch, "logendoffset"),
    (ApiKey::WriteTxnMarkers, "transactionversion"),
    (ApiKey::DescribeLogDirs, "iscordoned"),
    (ApiKey::DescribeLogDirs, "setasidefiles"),
    (ApiKey::DescribeLogDirs, "setasidebytes"),
    (ApiKey::DescribeLogDirs, "isrefused"),
    (ApiKey::DeleteGroups, "errormessage"),
    // OffsetDelete has no flexible version, so the oracle's structs have no field for unknown tagged fields.
    (ApiKey::OffsetDelete, "tagged"),
];

/// Lists of structs that no version of the oracle has.
const LISTS_NOT_IN_ORACLE: &[(ApiKey, &str)] = &[(ApiKey::ListTransactions, "served")];

fn oracle_key(key: ApiKey) -> OracleKey {
    OracleKey::try_from(key.code()).expect("the oracle knows every API of ours")
}

fn oracle_knows(key: ApiKey, version: Version) -> bool {
    !NOT_IN_ORACLE.contains(&(key, version.number))
}

/// Decodes and encodes a message with the oracle. Returns its debug text and its bytes.
fn oracle_recode(key: ApiKey, side: Side, version: Version, mut bytes: Bytes) -> (String, Bytes) {
    let mut out = BytesMut::new();
    let debug = match side {
        Side::Request => {
            let request = RequestKind::decode(oracle_key(key), &mut bytes, version.number).expect("a request");
            request.encode(&mut out, version.number).expect("the same request");
            format!("{request:?}")
        }
        Side::Response => {
            let response = ResponseKind::decode(oracle_key(key), &mut bytes, version.number).expect("a response");
            response.encode(&mut out, version.number).expect("the same response");
            format!("{response:?}")
        }
    };
    assert!(bytes.is_empty(), "{key:?} {side:?} {version:?}: the oracle leaves {} bytes", bytes.len());
    (debug, out.freeze())
}

/// Returns the names of all fields in a message of `key`, in the order in which `{:?}` shows them.
fn field_names(key: ApiKey, debug: &str) -> Vec<String> {
    let lists = LISTS_NOT_IN_ORACLE.iter().filter(|(of, _)| *of == key);
    let debug = lists.fold(without_values_in_quotes(debug), |debug, (_, name)| without_list(&debug, name));
    let ends = debug.match_indices(": ").map(|(end, _)| end);
    let word = |end: usize| debug[..end].rsplit(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
    let ours = |name: &str| match name {
        "unknown_tagged_fields" => "tagged".to_owned(),
        name => name.replace('_', ""),
    };
    let known = |name: &String| !FIELDS_NOT_IN_ORACLE.contains(&(key, name.as_str()));
    ends.map(|end| ours(word(end)))
        .filter(|name| !name.is_empty() && name.parse::<u32>().is_err())
        .filter(known)
        .collect()
}

/// Removes a list from a debug text.
fn without_list(debug: &str, name: &str) -> String {
    let Some((before, list)) = debug.split_once(&format!("{name}: [")) else { return debug.to_owned() };
    let mut depth = 1;
    let after = list.find(|c: char| {
        depth += i32::from(c == '[') - i32::from(c == ']');
        depth == 0
    });
    format!("{before}{}", &list[after.expect("a list ends") + 1..])
}

/// Removes strings and bytes from a debug text, because they may look like fields. `name: "d: 1"` becomes `name: ""`.
fn without_values_in_quotes(debug: &str) -> String {
    let (mut quoted, mut escaped) = (false, false);
    let mut kept = String::with_capacity(debug.len());
    for c in debug.chars() {
        let quote = c == '"' && !escaped;
        if quote || !quoted {
            kept.push(c);
        }
        escaped = quoted && c == '\\' && !escaped;
        quoted ^= quote;
    }
    kept
}

#[test]
fn a_value_that_looks_like_a_field_is_none() {
    let debug = r#"Topic { name: "a \\\" b: 1", key: Some(b"\\\\"), more: [(0, b"d: ")], tagged: {} }"#;
    assert_eq!(field_names(ApiKey::Metadata, debug), ["name", "key", "more", "tagged"]);
}

#[test]
fn the_gaps_are_gaps_of_the_oracle_still() {
    for (key, number) in NOT_IN_ORACLE {
        assert!(key.versions().contains(number), "{key:?}");
        let mut bytes = Bytes::from_static(&[0; 64]);
        let refusal = RequestKind::decode(oracle_key(*key), &mut bytes, *number).expect_err("a gap");
        assert!(format!("{refusal:#}").contains("version not supported"), "{key:?} {number}: {refusal:#}");
    }
}

#[test]
fn the_oracle_agrees_where_versions_start_and_become_flexible() {
    for (key, _, version) in every_message().filter(|(key, _, version)| oracle_knows(*key, *version)) {
        assert_eq!(oracle_key(key).valid_versions().min, *key.versions().start(), "{key:?}");
        let flexible = oracle_key(key).request_header_version(version.number) == 2;
        assert_eq!(version.flexible, flexible, "{key:?} {version:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// The bytes come from `schema`, which is a third encoder. Our codec and the oracle must both be able to read them,
    /// and must write the same bytes.
    #[test]
    fn the_oracle_reads_and_writes_the_same_bytes_and_fields(seed: u64) {
        for (key, side, version) in every_message().filter(|(key, _, version)| oracle_knows(*key, *version)) {
            let bytes = Bytes::from(Schema::new(key, side, version).message(&mut Dice(seed)));
            let ours = recode(key, side, version, bytes.clone()).unwrap_or_else(context(key, side, version));
            let (debug, theirs) = oracle_recode(key, side, version, ours.bytes.clone());
            prop_assert_eq!(&theirs, &ours.bytes, "{:?} {:?} {:?}", key, side, version);
            let back = recode(key, side, version, theirs).unwrap_or_else(context(key, side, version));
            prop_assert_eq!(&back.debug, &ours.debug);
            let (theirs, ours) = (field_names(key, &debug), field_names(key, &ours.debug));
            prop_assert_eq!(theirs, ours, "{:?} {:?}", key, version);
        }
    }
}

fn context<T>(key: ApiKey, side: Side, version: Version) -> impl FnOnce(DecodeError) -> T {
    move |e| panic!("{key:?} {side:?} {version:?}: {e}")
}
