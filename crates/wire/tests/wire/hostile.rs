//! Tests of bytes from hostile clients. The result is always an error or a message, and never a panic.

use crate::mutate::mutate;
use crate::recode::recode;
use crate::schema::{Dice, Schema, Side, every_message};
use bytes::Bytes;
use fullbore_wire::api::{self, ApiKey, RequestHeader};
use fullbore_wire::apis::delete_topics::DeleteTopicsRequest;
use fullbore_wire::{Codec, DecodeError, REQUEST_ELEMENTS_MAX, Reader, Version};
use proptest::prelude::*;

/// Decodes a request of `key` without its header, which must fail. Returns the error.
fn refusal(key: ApiKey, version: i16, bytes: &[u8]) -> DecodeError {
    let version = key.version(version).expect("a version of the API");
    let bytes = Bytes::copy_from_slice(bytes);
    recode(key, Side::Request, version, bytes).map(|ok| ok.debug).expect_err("hostile bytes")
}

#[test]
fn an_array_cannot_claim_more_elements_than_the_frame_has_bytes() {
    let claim = refusal(ApiKey::Metadata, 1, &i32::MAX.to_be_bytes());
    assert_eq!(claim, DecodeError::Count(i32::MAX as usize));
    let claim = refusal(ApiKey::Metadata, 9, &[0xff, 0xff, 0xff, 0xff, 0x07, 0, 0, 0]);
    assert_eq!(claim, DecodeError::Count(i32::MAX as usize - 1));
    // Three topics have at least two bytes each, so they do not fit into the five remaining bytes.
    assert_eq!(refusal(ApiKey::Metadata, 1, &[0, 0, 0, 3, 0, 0, 0, 0, 0]), DecodeError::Count(3));
}

#[test]
fn lengths_below_null_and_above_their_type_are_refused() {
    assert_eq!(refusal(ApiKey::Metadata, 1, &(-2i32).to_be_bytes()), DecodeError::Length(-2));
    assert_eq!(refusal(ApiKey::Metadata, 1, &i32::MIN.to_be_bytes()), DecodeError::Length(i32::MIN.into()));
    let string = refusal(ApiKey::Metadata, 1, &[0, 0, 0, 1, 0xff, 0xfe]);
    assert_eq!(string, DecodeError::Length(-2));
    // Kafka refuses strings of more than 32767 bytes, even in compact form.
    let long = [&[2, 0x81, 0x80, 0x02][..], &[b'a'; 40_000]].concat();
    assert_eq!(refusal(ApiKey::Metadata, 9, &long), DecodeError::Length(32_768));
    let beyond_int32 = refusal(ApiKey::Metadata, 9, &[0xff, 0xff, 0xff, 0xff, 0x0f]);
    assert_eq!(beyond_int32, DecodeError::Length(i64::from(u32::MAX) - 1));
}

#[test]
fn null_is_refused_where_the_version_has_none() {
    assert_eq!(refusal(ApiKey::Metadata, 0, &(-1i32).to_be_bytes()), DecodeError::Null("topics"));
    assert_eq!(refusal(ApiKey::Metadata, 1, &[0, 0, 0, 1, 0xff, 0xff, 0]), DecodeError::Null("name"));
    assert_eq!(refusal(ApiKey::DeleteTopics, 5, &[0, 0, 0, 0, 0]), DecodeError::Length(-1));
}

#[test]
fn a_nullable_struct_is_there_or_not() {
    let cursor = [1, 0, 0, 0, 9, 7];
    assert_eq!(refusal(ApiKey::DescribeTopicPartitions, 0, &cursor), DecodeError::Length(7));
}

#[test]
fn integers_of_variable_length_end_within_their_type() {
    assert_eq!(refusal(ApiKey::Metadata, 9, &[0x80, 0x80, 0x80, 0x80, 0x80, 0x01]), DecodeError::Varint);
    assert_eq!(refusal(ApiKey::Metadata, 9, &[0xff, 0xff, 0xff, 0xff, 0x1f]), DecodeError::Varint);
    assert_eq!(refusal(ApiKey::Metadata, 9, &[0x80, 0x80]), DecodeError::Truncated { missing: 1 });
}

#[test]
fn tags_ascend_and_fill_their_size() {
    let v = ApiKey::Metadata.version(9).expect("a version of Metadata");
    let request = |tags: &[u8]| Bytes::from([&[0, 1, 1, 1], tags].concat());
    let decode = |tags: &[u8]| recode(ApiKey::Metadata, Side::Request, v, request(tags)).map(|ok| ok.bytes);
    let ascending = [2, 5, 0, 6, 1, 0xaa];
    assert_eq!(decode(&ascending), Ok(request(&ascending)), "unknown tagged fields come back as they were");
    assert_eq!(decode(&[2, 6, 0, 5, 0]), Err(DecodeError::Tag(5)));
    assert_eq!(decode(&[2, 5, 0, 5, 0]), Err(DecodeError::Tag(5)));
    assert_eq!(decode(&[1, 5, 2, 0]), Err(DecodeError::Truncated { missing: 1 }));
    assert_eq!(decode(&[0xff, 0xff, 0xff, 0xff, 0x0f]), Err(DecodeError::Count(u32::MAX as usize)));
}

#[test]
fn a_known_tagged_field_must_fill_its_size_and_no_more() {
    // Fetch 12 with an empty request, and then tag 0 with the cluster id "a".
    let empty = [&[0; 4 + 4 + 4 + 4 + 1 + 4 + 4][..], &[1, 1, 1]].concat();
    let with = |field: &[u8]| refusal(ApiKey::Fetch, 12, &[&empty, field].concat());
    assert_eq!(with(&[1, 0, 3, 2, b'a', 0]), DecodeError::Tag(0));
    assert_eq!(with(&[1, 0, 1, 2]), DecodeError::Truncated { missing: 1 });
}

#[test]
fn strings_are_utf_8() {
    assert_eq!(refusal(ApiKey::Metadata, 1, &[0, 0, 0, 1, 0, 1, 0xff]), DecodeError::Utf8);
}

#[test]
fn elements_are_counted_over_the_whole_message() {
    let v = ApiKey::DeleteTopics.version(4).expect("a version of DeleteTopics");
    let names = |count: usize| {
        let (low, high) = (count + 1, (count + 1) >> 7);
        let prefix = [low as u8 | 0x80, high as u8 | 0x80, (high >> 7) as u8];
        Bytes::from([&prefix[..], &vec![1; count], &[0; 5]].concat())
    };
    let decode = |bytes: Bytes, budget| DeleteTopicsRequest::decode(&mut Reader::new(bytes, budget), v);
    let full = decode(names(REQUEST_ELEMENTS_MAX), REQUEST_ELEMENTS_MAX).expect("within the budget");
    assert_eq!(full.topic_names.len(), REQUEST_ELEMENTS_MAX);
    let over = decode(names(REQUEST_ELEMENTS_MAX + 1), REQUEST_ELEMENTS_MAX);
    assert_eq!(over, Err(DecodeError::Count(REQUEST_ELEMENTS_MAX + 1)));

    // CreateTopics 5 with one topic and two configurations, which are three elements.
    let v = ApiKey::CreateTopics.version(5).expect("a version of CreateTopics");
    let bytes = [&[2, 1][..], &[0; 6], &[1, 3], &[1, 1, 0], &[1, 1, 0], &[0], &[0; 4], &[0, 0]].concat();
    let decode = |budget| {
        let mut reader = Reader::new(Bytes::from(bytes.clone()), budget);
        api::decode_request::<fullbore_wire::apis::create_topics::CreateTopicsRequest>(&mut reader, v)
    };
    assert_eq!(decode(3).map(|request| request.topics[0].configs.len()), Ok(2));
    assert_eq!(decode(2).err(), Some(DecodeError::Count(2)));
}

#[test]
fn every_message_cut_short_or_too_long_is_refused() {
    for (key, side, version) in every_message() {
        let bytes = Bytes::from(Schema::new(key, side, version).message(&mut Dice(11)));
        for end in 0..bytes.len().min(700) {
            assert!(recode(key, side, version, bytes.slice(..end)).is_err(), "{key:?} {side:?} {version:?} at {end}");
        }
        let longer = Bytes::from([&bytes[..], &[0]].concat());
        assert_eq!(recode(key, side, version, longer).err(), Some(DecodeError::Trailing(1)), "{key:?} {version:?}");
    }
}

/// Checks that a message that can be decoded is equal after it is encoded and decoded again.
fn decodes_to_a_fixed_point(key: ApiKey, side: Side, version: Version, bytes: Bytes) {
    if let Ok(once) = recode(key, side, version, bytes) {
        let twice = recode(key, side, version, once.bytes).expect("our own bytes");
        assert_eq!(twice.debug, once.debug);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(255), any::<u8>()], 0..200)) {
        let bytes = Bytes::from(bytes);
        for (key, side, version) in every_message() {
            decodes_to_a_fixed_point(key, side, version, bytes.clone());
        }
    }

    #[test]
    fn mutated_messages_never_panic(seed: u64) {
        let mut dice = Dice(seed);
        for (key, side, version) in every_message() {
            let mut bytes = Schema::new(key, side, version).message(&mut dice);
            (0..=dice.below(4)).for_each(|_| mutate(&mut bytes, &mut dice));
            decodes_to_a_fixed_point(key, side, version, bytes.into());
        }
    }

    #[test]
    fn nested_claims_never_panic(seed: u64) {
        let mut dice = Dice(seed);
        for (key, side, version) in every_message() {
            let bytes = Schema::new(key, side, version).claims(1 + dice.below(300), &mut dice);
            decodes_to_a_fixed_point(key, side, version, bytes.into());
        }
    }

    #[test]
    fn random_frames_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..64), key in 0i16..80, version in -1i16..20) {
        let header = [&key.to_be_bytes()[..], &version.to_be_bytes(), &[0; 4], &bytes].concat();
        let mut reader = api::request_reader(header.into());
        if let Ok(header) = RequestHeader::decode(&mut reader) {
            prop_assert_eq!(header.api().is_some(), ApiKey::from_code(key).is_some_and(|k| k.versions().contains(&version)));
        }
    }
}
