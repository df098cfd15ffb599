//! Keys and certificates as users have them: those that are accepted, and the errors for the others.

use fullbore_tests::pki::{Authority, self_signed, write};
use fullbore_tls::{Acceptor, ClientAuth, Connector, Settings};
use pkcs8::der::pem::LineEnding;
use pkcs8::pkcs5::pbes2;
use pkcs8::{PrivateKeyInfo, SecretDocument};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

fn load(pairs: &[(&str, &str)]) -> Result<(), String> {
    let mut settings = Settings::default();
    pairs.iter().for_each(|(key, value)| settings.set(key, value).expect(key));
    Acceptor::load(&settings, ClientAuth::None).map(|_| ()).map_err(|error| error.to_string())
}

fn encrypted(key: &str, password: &str) -> String {
    let (_, document) = SecretDocument::from_pem(key).expect("PEM");
    let info = PrivateKeyInfo::try_from(document.as_bytes()).expect("PKCS#8");
    let params =
        pbes2::Parameters::pbkdf2_sha256_aes256cbc(2048, b"salt and pepper", b"sixteen bytes iv").expect("parameters");
    let encrypted = info.encrypt_with_params(params, password).expect("encrypted");
    encrypted.to_pem("ENCRYPTED PRIVATE KEY", LineEnding::LF).expect("PEM").to_string()
}

#[test]
fn an_encrypted_key_is_opened_by_its_password() {
    let issued = Authority::new("ca").broker(&["h"]);
    let key = encrypted(&issued.key, "hunter2");
    let with = |more: &[(&str, &str)]| {
        load(&[&[("ssl.keystore.key", key.as_str()), ("ssl.keystore.certificate.chain", &issued.chain)], more].concat())
    };
    with(&[("ssl.key.password", "hunter2")]).expect("the right one");
    let missing = with(&[]).expect_err("no password");
    assert!(missing.starts_with("ssl.keystore.key: ") && missing.contains("ssl.key.password must be set"), "{missing}");
    let wrong = with(&[("ssl.key.password", "hunter3")]).expect_err("another one");
    assert!(wrong.contains("ssl.key.password is wrong") && !wrong.contains("hunter"), "{wrong}");
}

#[test]
fn one_file_has_key_and_chain_in_either_order() {
    let directory = tempfile::tempdir().expect("a directory");
    let issued = Authority::new("ca").broker(&["h"]);
    for text in [format!("{}{}", issued.key, issued.chain), format!("some words\n{}\n{}", issued.chain, issued.key)] {
        let path = write(directory.path(), "k.pem", &text);
        load(&[("ssl.keystore.location", path.to_str().expect("UTF-8"))]).expect("both are there");
    }
}

#[test]
fn an_unusable_store_is_refused_with_its_file_name() {
    let directory = tempfile::tempdir().expect("a directory");
    let (issued, other) = (Authority::new("ca").broker(&["h"]), self_signed(&["h"], false));
    let mismatch = format!("{}{}", issued.key, other.chain);
    let broken = issued.both().replace("MI", "?!");
    for (bytes, expected) in [
        (&b"\xfe\xed\xfe\xed\0\0\0\x02"[..], "Java key store (JKS)"),
        (&b"\x30\x82\x0a\x01"[..], "PKCS12"),
        (issued.key.as_bytes(), "no certificate"),
        (issued.chain.as_bytes(), "no private key"),
        (mismatch.as_bytes(), "not that of the first certificate"),
        (broken.as_bytes(), "not PEM"),
        (b"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n", "openssl pkcs8 -topk8"),
        (b"", "no private key"),
    ] {
        let path = directory.path().join("k");
        std::fs::write(&path, bytes).expect("written");
        let path = path.to_str().expect("UTF-8");
        let refusal = load(&[("ssl.keystore.location", path)]).expect_err(expected);
        assert!(
            refusal.starts_with(&format!("ssl.keystore.location={path}: ")) && refusal.contains(expected),
            "{refusal}"
        );
    }
    let missing = load(&[("ssl.keystore.location", "/no/such.pem")]).expect_err("missing");
    assert!(missing.contains("/no/such.pem") && missing.contains("No such file"), "{missing}");
}

#[test]
fn a_truststore_without_certificates_is_refused() {
    let mut settings = Settings::default();
    settings.set("ssl.truststore.certificates", "nothing").expect("any text");
    let refusal = Connector::load(&settings, true).expect_err("no certificates").to_string();
    assert_eq!(refusal, "ssl.truststore.certificates: has no certificate (BEGIN CERTIFICATE)");
}

#[test]
fn the_warning_names_the_certificate_that_expires_first() {
    let days = |days: u64| Duration::from_secs(days * 24 * 60 * 60);
    let ends = UNIX_EPOCH + Duration::from_secs(978_307_200);
    let authority = Authority::new("ca");
    // The expired certificate ends in 2001 (UTCTime), and the others end in 4096 (GeneralizedTime).
    let (issued, other) = (authority.broker(&["h"]), authority.expired_broker(&["h"]));
    let chain = format!("{}{}{}", issued.chain, other.chain, authority.pem());
    let mut settings = Settings::default();
    for (key, value) in [("ssl.keystore.key", &issued.key), ("ssl.keystore.certificate.chain", &chain)] {
        settings.set(key, value).expect(key);
    }
    let reported = |now| {
        let acceptor = Acceptor::load(&settings, ClientAuth::None).expect("ends are not looked at there");
        acceptor.expiry().expect("it has an end").warning(now, days(30))
    };
    assert_eq!(reported(ends - days(31)), None);
    let soon = reported(ends - days(30)).expect("in time");
    assert!(soon.contains("2 of 3 expires at 2001-01-01T00:00:00Z, in 30 days"), "{soon}");
    assert!(reported(ends - days(1) / 2).is_some_and(|words| words.contains("in 0 days")));
    let ended = "ssl.keystore.certificate.chain: certificate 2 of 3 expired at 2001-01-01T00:00:00Z: clients may refuse the chain";
    assert_eq!(reported(ends + days(9999)).as_deref(), Some(ended));

    settings.set("ssl.keystore.certificate.chain", &issued.chain).expect("PEM");
    let acceptor = Acceptor::load(&settings, ClientAuth::None).expect("good");
    assert_eq!(acceptor.expiry().expect("it has an end").warning(SystemTime::now(), days(30)), None);
    let ended = acceptor.expiry().expect("it has an end").warning(ends + days(999_999), days(30)).expect("long ago");
    assert!(ended.contains("expired at 4096-01-01T00:00:00Z"), "{ended}");
}

/// Creates a key and a certificate of version 1, as plain `openssl x509 -req` makes them.
fn version_1() -> (String, String) {
    let directory = tempfile::tempdir().expect("a directory");
    let run = |arguments: &str| {
        let mut openssl = std::process::Command::new("openssl");
        let output = openssl.args(arguments.split(' ')).current_dir(directory.path()).output().expect("openssl");
        assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    };
    run("genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out ca.key");
    run("req -x509 -new -key ca.key -subj /CN=ca -days 9 -out ca.pem");
    run("genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out key.pem");
    run("req -new -key key.pem -subj /CN=localhost -out csr.pem");
    run("x509 -req -in csr.pem -CA ca.pem -CAkey ca.key -CAcreateserial -days 9 -out one.pem");
    let read = |name: &str| std::fs::read_to_string(directory.path().join(name)).expect("made");
    (read("key.pem"), read("one.pem"))
}

#[test]
fn a_certificate_of_version_1_is_refused_with_the_remedy() {
    let (key, chain) = version_1();
    let own = [("ssl.keystore.key", key.as_str()), ("ssl.keystore.certificate.chain", &chain)];
    let broker = load(&own).expect_err("version 1");
    let mut settings = Settings::default();
    let trusted = [("ssl.truststore.certificates", chain.as_str())];
    own.iter().chain(&trusted).for_each(|(key, value)| settings.set(key, value).expect(key));
    let client = Connector::load(&settings, true).expect_err("version 1").to_string();
    for refusal in [broker, client] {
        assert!(refusal.starts_with("ssl.keystore.key: has a certificate of X.509 version 1"), "{refusal}");
        assert!(refusal.contains("openssl x509 -req -extfile FILE"), "{refusal}");
    }
}
