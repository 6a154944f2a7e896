//! Trust, and the messages if it fails.

mod support;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::time::SystemTime;

use flatout_tls::{
    Acceptor, Awaited, Certificate, ClientPlan, Connector, Identity, MinVersion, Profile, Proof, Selector,
    ServerPlan, Shake, SubjectName,
};
use support::{Folder, server, shaken, write_private};

/// The error that a client reports for a server.
fn refusal(acceptor: &Acceptor, plan: &ClientPlan, name: &str) -> String {
    let (_, client) = shaken(acceptor, &Connector::open(plan, name).unwrap());
    client.fault().map_or("open".to_owned(), ToString::to_string)
}

#[test]
fn a_server_that_cannot_be_trusted_is_named() {
    let (folder, stranger) = (Folder::new(), Folder::new());
    let good = folder.acceptor();
    let trusting = folder.trusting();
    assert_eq!(refusal(&good, &trusting, "localhost"), "open");
    assert_eq!(
        refusal(&good, &trusting, "example.org"),
        "its certificate is for another name: got localhost; need example.org"
    );
    assert_eq!(
        refusal(&good, &stranger.trusting(), "localhost"),
        "its certificate was not issued by a trusted CA"
    );
    let expired = folder.sign_with("expired", &["localhost"], |params| {
        params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    });
    let expired = Acceptor::open(server(vec![expired])).unwrap();
    assert!(expired.certificates()[0].days_left(SystemTime::now()) < -2000);
    assert_eq!(refusal(&expired, &trusting, "localhost"), "its certificate has expired");
    let own = Acceptor::open(server(vec![folder.sign_with("own", &["localhost"], |params| {
        params.not_before = rcgen::date_time_ymd(3000, 1, 1);
        params.not_after = rcgen::date_time_ymd(3001, 1, 1);
    })]))
    .unwrap();
    assert_eq!(refusal(&own, &trusting, "localhost"), "its certificate is not valid yet; check the clocks");
    let blind = ClientPlan { verify: false, ..ClientPlan::default() };
    for acceptor in [&good, &expired, &own] {
        assert_eq!(refusal(acceptor, &blind, "whatever"), "open");
    }
}

#[test]
fn the_name_chooses_the_certificate() {
    let folder = Folder::new();
    let names = [&["a.test"][..], &["*.b.test", "b.test"], &["c.test", "127.0.0.1"]];
    let identities =
        names.iter().enumerate().map(|(at, names)| folder.sign(&at.to_string(), names)).collect();
    let acceptor = Acceptor::open(server(identities)).unwrap();
    assert_eq!(acceptor.certificates()[1].names, ["*.b.test", "b.test"]);
    for name in ["a.test", "A.test", "b.test", "x.b.test", "c.test"] {
        assert_eq!(refusal(&acceptor, &folder.trusting(), name), "open", "{name}");
    }
    assert!(refusal(&acceptor, &folder.trusting(), "x.y.b.test").contains("another name: got a.test"));
}

#[test]
fn clients_show_certificates_where_that_is_asked() {
    let (folder, stranger) = (Folder::new(), Folder::new());
    let plan = |required| ServerPlan {
        clients: Some(folder.clients(required)),
        ..server(vec![folder.sign("server", &["localhost"])])
    };
    let showing = |of: &Folder| ClientPlan { identity: Some(of.sign("me", &["me"])), ..folder.trusting() };
    let tries = |plan: ServerPlan, client: &ClientPlan| {
        let acceptor = Acceptor::open(plan).unwrap();
        let (mut server, mut client) = shaken(&acceptor, &Connector::open(client, "localhost").unwrap());
        server.receive(&mut [0; 1]);
        client.receive(&mut [0; 1]);
        let shown = server.peer_certificate().is_some();
        (server.fault().map(ToString::to_string), client.fault().map(ToString::to_string), shown)
    };
    assert_eq!(tries(plan(true), &showing(&folder)), (None, None, true));
    assert_eq!(tries(plan(false), &folder.trusting()), (None, None, false));
    let (ours, theirs, _) = tries(plan(true), &folder.trusting());
    assert_eq!(ours.unwrap(), "the peer sent no certificate");
    assert_eq!(theirs.unwrap(), "the peer requires a client certificate");
    let (ours, ..) = tries(plan(false), &showing(&stranger));
    assert!(ours.unwrap().contains("not issued by a trusted CA"));
}

#[test]
fn servers_are_known_by_one_of_several_other_names() {
    let (folder, stranger) = (Folder::new(), Folder::new());
    let named = |of: &Folder| {
        Acceptor::open(server(vec![of.sign_with("server", &["app.test", "*.wild.test"], |params| {
            let uri = "spiffe://test/app".try_into().unwrap();
            params.subject_alt_names.push(rcgen::SanType::URI(uri));
        })]))
        .unwrap()
    };
    let acceptor = named(&folder);
    let dns = |name: &str| SubjectName::Dns(name.to_owned());
    let uri = |uri: &str| SubjectName::Uri(uri.to_owned());
    for (alternatives, is_good) in [
        (vec![dns("app.test")], true),
        (vec![dns("x.wild.test")], true),
        (vec![uri("spiffe://test/app")], true),
        (vec![dns("other.test"), uri("spiffe://test/app")], true),
        (vec![uri("spiffe://test/other"), dns("app.test")], true),
        (vec![dns("localhost")], false),
        (vec![uri("spiffe://test/other")], false),
        (vec![uri("app.test")], false),
        (vec![dns("spiffe://test/app")], false),
        (Vec::new(), false),
    ] {
        let plan = ClientPlan { alternatives: alternatives.clone(), ..folder.trusting() };
        // The name of the connection does not count any more.
        let found = refusal(&acceptor, &plan, "localhost");
        assert_eq!(found == "open", is_good, "{alternatives:?}: {found}");
    }
    let plan = ClientPlan { alternatives: vec![dns("app.test")], ..folder.trusting() };
    let found = refusal(&named(&stranger), &plan, "app.test");
    assert_eq!(found, "its certificate was not issued by a trusted CA", "the chain is checked as well");
}

#[test]
fn profiles_of_other_realms_have_other_rules_and_opaque_ones_select_no_protocol() {
    let folder = Folder::new();
    let identities = vec![folder.sign("server", &["localhost"])];
    let profile = |realm: &str, is_opaque| Profile {
        identities: identities.clone(),
        realm: realm.to_owned(),
        is_opaque,
        ..Profile::default()
    };
    let profiles = vec![
        profile("", false),
        profile("a", false),
        profile("b", false),
        profile("b", false),
        profile("b", true),
    ];
    let plan = ServerPlan { profiles, ..server(identities.clone()) };
    let chosen = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let select = chosen.clone();
    let acceptor = Acceptor::open_with(
        plan,
        Selector::new(move |_, _| select.load(std::sync::atomic::Ordering::Relaxed)),
    )
    .unwrap();
    let rules: Vec<_> = (0..6).map(|profile| acceptor.rules(profile).unwrap()).collect();
    assert_eq!(rules[0], rules[1], "without a realm, as the server's own");
    assert!(rules[1] != rules[2] && rules[2] != rules[3] && rules[3] == rules[4] && rules[4] != rules[5]);
    let connector = Connector::open(&folder.trusting(), "localhost").unwrap();
    for (profile, protocol) in [(4, Some(&b"http/1.1"[..])), (5, None)] {
        chosen.store(profile, std::sync::atomic::Ordering::Relaxed);
        let (server, _) = shaken(&acceptor, &connector);
        assert_eq!((server.protocol(), server.rules()), (protocol, Some(rules[profile])));
    }
}

#[test]
fn the_name_that_a_client_asks_for_is_known_if_the_plan_wants_it() {
    let folder = Folder::new();
    let identities = vec![folder.sign("a", &["LocalHost"])];
    let connector = Connector::open(&folder.trusting(), "LocalHost").unwrap();
    for (keeps_names, expected) in [(true, Some("localhost")), (false, None)] {
        let acceptor = Acceptor::open(ServerPlan { keeps_names, ..server(identities.clone()) }).unwrap();
        let (server, client) = shaken(&acceptor, &connector);
        assert_eq!((server.server_name(), client.server_name()), (expected, None));
    }
}

#[test]
fn files_that_cannot_be_used_are_refused_with_the_reason() {
    let folder = Folder::new();
    let Identity { certificate, key, .. } = folder.sign("a", &["a"]);
    let other = folder.sign("b", &["b"]);
    let text = |name: &str, text: &str| {
        let path = folder.path().join(name);
        write_private(&path, text);
        path
    };
    let refused = |certificate: &std::path::Path, key: &std::path::Path| {
        Certificate::load(certificate, key).unwrap_err()
    };
    let nowhere = folder.path().join("nowhere");
    assert!(refused(&nowhere, &key).contains("nowhere: cannot be read: No such file"));
    assert!(refused(&certificate, &nowhere).contains("nowhere: cannot be read: No such file"));
    assert!(refused(&key, &key).contains("it is a private key; the certificate is named first"));
    assert!(refused(&certificate, &certificate).contains("others may read or write it"));
    assert!(refused(&certificate, &text("c", "")).contains("no private key in it"));
    let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAA==\n-----END ENCRYPTED PRIVATE KEY-----\n";
    assert!(refused(&certificate, &text("d", encrypted)).contains("passwords=FILE"));
    let old =
        "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nAA==\n-----END RSA PRIVATE KEY-----\n";
    assert!(refused(&certificate, &text("g", old)).contains("openssl pkey -aes256 -in"));
    assert!(refused(&certificate, &other.key).contains("does not belong to the certificate"));
    let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    assert!(refused(&text("e", broken), &key).contains("malformed"));
    assert!(refused(&text("f", "-----BEGIN CERTIFICATE-----\nAA"), &key).contains("not PEM"));
    for mode in [0o644, 0o604, 0o620, 0o660] {
        fs::set_permissions(&key, Permissions::from_mode(mode)).unwrap();
        let message = refused(&certificate, &key);
        assert!(message.contains(&format!("mode {mode:04o}")) && message.contains("chmod 600"), "{message}");
    }
    for mode in [0o400, 0o600, 0o640] {
        fs::set_permissions(&key, Permissions::from_mode(mode)).unwrap();
        Certificate::load(&certificate, &key).unwrap();
    }
    assert!(Acceptor::open(server(Vec::new())).unwrap_err().contains("need at least one"));
    assert!(Connector::open(&ClientPlan::default(), "a b").unwrap_err().contains("got `a b`"));
}

#[test]
fn changed_files_are_followed_and_broken_ones_kept_out() {
    let folder = Folder::new();
    let identity = folder.sign("a", &["old.test"]);
    let acceptor = Acceptor::open(server(vec![identity.clone()])).unwrap();
    let connector = Connector::open(&folder.trusting(), "old.test").unwrap();
    let (mut before, mut client) = shaken(&acceptor, &connector);
    client.receive(&mut [0; 1]);
    assert_eq!(acceptor.follow(), Ok(false));

    fs::write(&identity.certificate, "nothing").unwrap();
    assert!(acceptor.follow().unwrap_err().contains("no certificate in it"));
    assert_eq!(acceptor.follow(), Ok(false), "said once");
    assert_eq!(refusal(&acceptor, &folder.trusting(), "old.test"), "open");

    folder.sign("a", &["new.test"]);
    assert_eq!(acceptor.follow(), Ok(true));
    assert_eq!(refusal(&acceptor, &folder.trusting(), "new.test"), "open");
    assert_eq!(acceptor.certificates()[0].names, ["new.test"]);
    assert_eq!(client.send(b"x"), flatout_lane::socket::Moved::Bytes(1));
    assert_eq!(before.receive(&mut [0; 9]), flatout_lane::socket::Moved::Bytes(1), "it goes on");
    assert!(shaken(&acceptor, &connector).0.is_resumed(), "tickets stay good");

    let newest = ServerPlan { min_version: MinVersion::Tls13, ..server(vec![identity]) };
    acceptor.replace(acceptor.prepare(newest, Selector::default()).unwrap());
    assert_eq!(refusal(&acceptor, &folder.trusting(), "new.test"), "open");
}

/// Many concurrent connections resume earlier sessions, as many as are kept.
/// A key, and the same encrypted with the password `secret`.
const PLAIN_KEY: &str = "-----BEGIN PRIVATE KEY-----\n\
    MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg+Pi0zlM0bWDK2xDZ\n\
    pg4IHBPs/5ERhx/lTsafckHCAOuhRANCAAQBqUgruFKnCRxLmVtDeAUBC2/wtZuP\n\
    IN/mHrnsSFzKTVNvMuBnRHlJ5aXAzW5OoRz/6z6L+wOFE0oRrMZF3tTv\n\
    -----END PRIVATE KEY-----\n\
    ";
const ENCRYPTED_KEY: &str = "-----BEGIN ENCRYPTED PRIVATE KEY-----\n\
    MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAjVQYPuq9hNWwICCAAw\n\
    DAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEEJ6l4RqdH3VlBtH+KMVShnsEgZBZ\n\
    cStYqPRQbG4LqsTugjM4F1yIDHKxnSGgBjm/bEzX36VmReeSCFpWMdrSSZLcRKxr\n\
    h+zoD6j0cXBCqpi4Iy8vQ+4hsYONQ7szcPO635BV93O3lpeqD/86O/K88NmCKFxi\n\
    OVNx20k+b/7nz/xn5McaZEQP3IxjJp7tiUJ8ilPOU0530fdUpVa48lPCG/w6ivQ=\n\
    -----END ENCRYPTED PRIVATE KEY-----\n\
    ";

#[test]
fn encrypted_keys_need_one_of_the_passwords() {
    let folder = Folder::new();
    let identity = folder.sign_key("a", &["localhost"], rcgen::KeyPair::from_pem(PLAIN_KEY).unwrap());
    write_private(&identity.key, ENCRYPTED_KEY);
    let passwords = folder.path().join("passwords");
    let encrypted = Identity { passwords: Some(passwords.clone()), ..identity.clone() };
    for (text, expected) in [
        ("secret", None),
        ("wrong\r\n\nsecret\r\n", None),
        ("wrong\n", Some("no password in")),
        ("", Some("no password in")),
    ] {
        fs::write(&passwords, text).unwrap();
        match (Certificate::of(&encrypted), expected) {
            (Ok(_), None) => {}
            (Err(why), Some(expected)) => assert!(why.contains(expected), "{why}"),
            (result, _) => panic!("{text:?}: {result:?}"),
        }
    }
    // The certificate is in the same file, before it or behind it.
    fs::write(&passwords, "secret").unwrap();
    let certificate = fs::read_to_string(&identity.certificate).unwrap();
    for parts in [[certificate.as_str(), ENCRYPTED_KEY], [ENCRYPTED_KEY, certificate.as_str()]] {
        let whole = Identity { certificate: identity.key.clone(), ..encrypted.clone() };
        write_private(&identity.key, &parts.concat());
        Certificate::of(&whole).unwrap();
    }
    write_private(&identity.key, ENCRYPTED_KEY);
    fs::write(&passwords, "wrong\n".repeat(32) + "secret").unwrap();
    assert!(Certificate::of(&encrypted).is_err(), "32 passwords are tried");
    write_private(&identity.key, &ENCRYPTED_KEY.replace("MIH", "MIG"));
    assert!(Certificate::of(&encrypted).unwrap_err().contains("malformed or not supported"));
    fs::remove_file(&passwords).unwrap();
    write_private(&identity.key, ENCRYPTED_KEY);
    assert!(Certificate::of(&encrypted).unwrap_err().contains("cannot be read: No such file"));
    // A change of the passwords is one of the certificate.
    fs::write(&passwords, "secret").unwrap();
    let acceptor = Acceptor::open(server(vec![encrypted])).unwrap();
    assert_eq!(refusal(&acceptor, &folder.trusting(), "localhost"), "open");
    assert_eq!(acceptor.follow(), Ok(false));
    fs::write(&passwords, "wrong").unwrap();
    assert!(acceptor.follow().unwrap_err().contains("no password in"));
    assert_eq!(refusal(&acceptor, &folder.trusting(), "localhost"), "open");
}

#[test]
fn sessions_are_kept_for_many_connections() {
    let folder = Folder::new();
    let acceptor = folder.acceptor();
    for (sessions_max, expected) in [(256, 20), (5, 5), (0, 0)] {
        let plan = ClientPlan { sessions_max, ..folder.trusting() };
        let connector = Connector::open(&plan, "localhost").unwrap();
        let mut first: Vec<_> = (0..20).map(|_| shaken(&acceptor, &connector)).collect();
        // Tickets arrive after the handshake.
        for (_, client) in &mut first {
            client.receive(&mut [0; 1]);
        }
        let next: Vec<_> = (0..20).map(|_| shaken(&acceptor, &connector)).collect();
        assert_eq!(next.iter().filter(|(_, client)| client.is_resumed()).count(), expected);
    }
}

#[test]
fn clients_offer_only_the_configured_cipher() {
    let folder = Folder::new();
    let acceptor = folder.acceptor();
    for (cipher, version) in
        [("TLS_AES_128_GCM_SHA256", "TLSv1.3"), ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "TLSv1.2")]
    {
        let (cipher, key_exchange) = (cipher.to_owned(), Some("x25519".to_owned()));
        let plan = ClientPlan { cipher: Some(cipher.clone()), key_exchange, ..folder.trusting() };
        let (_, client) = shaken(&acceptor, &Connector::open(&plan, "localhost").unwrap());
        assert_eq!(client.cipher(), Some((version, cipher)));
        assert_eq!(client.key_exchange().as_deref(), Some("X25519"));
    }
    let plan = ClientPlan { cipher: Some("RC4".to_owned()), ..ClientPlan::default() };
    let message = Connector::open(&plan, "localhost").unwrap_err();
    assert!(message.contains("cipher suite: got `RC4`, need one of TLS_AES_256_GCM_SHA384"), "{message}");
}

#[test]
fn certificates_that_are_to_come_are_waited_for() {
    let folder = Folder::new();
    let both = folder.path().join("both.pem");
    let plan = ServerPlan {
        awaited: vec![Awaited { path: both.clone(), names: vec!["a.test".to_owned()] }],
        ..server(Vec::new())
    };
    let acceptor = Acceptor::open(plan).unwrap();
    assert!(acceptor.certificates().is_empty());
    assert!(refusal(&acceptor, &folder.trusting(), "a.test").contains("refused with the alert"));
    let identity = folder.sign("a", &["a.test"]);
    let text = [fs::read_to_string(identity.key).unwrap(), fs::read_to_string(identity.certificate).unwrap()];
    write_private(&both, &text.concat());
    assert_eq!(acceptor.follow(), Ok(true));
    assert_eq!(refusal(&acceptor, &folder.trusting(), "a.test"), "open");
}

/// A client must not get the certificate of another name in place of one that is still to come.
#[test]
fn a_name_whose_certificate_does_not_exist_yet_is_refused() {
    let folder = Folder::new();
    let awaited =
        |file: &str, name: &str| Awaited { path: folder.path().join(file), names: vec![name.to_owned()] };
    let plan = ServerPlan {
        awaited: vec![awaited("b.pem", "b.test"), awaited("c.pem", "*.c.test"), awaited("d.pem", "d.a.test")],
        ..server(vec![folder.sign("a", &["a.test", "*.a.test"])])
    };
    let acceptor = Acceptor::open(plan.clone()).unwrap();
    let insecure = ClientPlan { verify: false, ..ClientPlan::default() };
    for name in ["b.test", "B.test", "x.c.test"] {
        let said = refusal(&acceptor, &insecure, name);
        assert!(said.contains("UnrecognisedName"), "{name}: {said}");
    }
    // A certificate that is valid for the name serves it meanwhile; unknown names get the first one, as always.
    for name in ["a.test", "d.a.test"] {
        assert_eq!(refusal(&acceptor, &folder.trusting(), name), "open", "{name}");
    }
    for name in ["c.test", "y.x.c.test", "other.test"] {
        assert_eq!(refusal(&acceptor, &insecure, name), "open", "{name}");
    }
    let identity = folder.sign("b", &["b.test"]);
    let text = [fs::read_to_string(identity.key).unwrap(), fs::read_to_string(identity.certificate).unwrap()];
    write_private(&folder.path().join("b.pem"), &text.concat());
    assert_eq!(acceptor.follow(), Ok(true));
    assert_eq!(refusal(&acceptor, &folder.trusting(), "b.test"), "open");
}

#[test]
fn an_authority_that_checks_a_name_gets_the_proof_and_nothing_else() {
    let folder = Folder::new();
    let plan = ServerPlan { proves_names: true, ..server(vec![folder.sign("a", &["a.test"])]) };
    let acceptor = Acceptor::open(plan).unwrap();
    let asking =
        ClientPlan { protocols: vec![b"acme-tls/1".to_vec()], verify: false, ..ClientPlan::default() };
    assert_ne!(refusal(&acceptor, &asking, "a.test"), "open", "nobody is checked");
    let made = rcgen::generate_simple_self_signed(["a.test".to_owned()]).unwrap();
    let (certificate, key) = (made.cert.der().to_vec(), made.signing_key.serialize_der());
    acceptor
        .proofs()
        .set(&[Proof { name: "A.test".to_owned(), certificate: certificate.clone(), key }])
        .unwrap();
    let (mut ours, theirs) = shaken(&acceptor, &Connector::open(&asking, "a.test").unwrap());
    assert_eq!(theirs.peer_certificate(), Some(&certificate[..]));
    assert_eq!(theirs.protocol(), Some(&b"acme-tls/1"[..]));
    assert_eq!(ours.receive(&mut [0; 9]), flatout_lane::socket::Moved::Bytes(0), "it has ended");
    assert_ne!(refusal(&acceptor, &asking, "b.test"), "open");
    assert_eq!(refusal(&acceptor, &folder.trusting(), "a.test"), "open", "others get the certificate");
    acceptor.proofs().set(&[]).unwrap();
    assert_ne!(refusal(&acceptor, &asking, "a.test"), "open");
}

#[test]
fn sessions_go_on_elsewhere_with_the_same_keys_and_the_same_trust() {
    let folder = Folder::new();
    let plan = server(vec![folder.sign("server", &["localhost"])]);
    let with_clients = |required| {
        let clients = folder.clients(required);
        ServerPlan { clients: Some(clients), ..plan.clone() }
    };
    let first = Acceptor::open(plan.clone()).unwrap();
    let connector = Connector::open(&folder.trusting(), "localhost").unwrap();
    let resumes = |acceptor: &Acceptor| {
        let (server, mut client) = shaken(acceptor, &connector);
        client.receive(&mut [0; 1]);
        server.is_resumed()
    };
    assert!(!resumes(&first));
    let other = Acceptor::open(plan.clone()).unwrap();
    assert!(!resumes(&other), "it has keys of its own");
    assert!(resumes(&other));
    first.tickets().add(&other.tickets().text(), SystemTime::now()).unwrap();
    assert!(resumes(&first));
    first.replace(first.prepare(with_clients(false), Selector::default()).unwrap());
    assert!(!resumes(&first), "who was not asked for a certificate is asked now");
    assert!(resumes(&first));
    first.replace(first.prepare(plan, Selector::default()).unwrap());
    assert!(!resumes(&first));
}

#[test]
fn certificates_have_a_renewal_identifier() {
    let folder = Folder::new();
    let serial = [0x87, 0x65, 0x43, 0x21];
    let named = folder.sign_with("named", &["a.test"], |params| {
        params.serial_number = Some(rcgen::SerialNumber::from_slice(&serial));
        params.use_authority_key_identifier_extension = true;
    });
    let (authority, encoded) = Certificate::load(&named.certificate, &named.key).unwrap().issued_as.unwrap();
    // As in the example of RFC 9773, section 4.1: a number whose first bit is set starts with a zero byte.
    assert_eq!((authority.len(), &encoded[..]), (20, &[0, 0x87, 0x65, 0x43, 0x21][..]));
    let nameless = folder.sign("nameless", &["a.test"]);
    assert_eq!(Certificate::load(&nameless.certificate, &nameless.key).unwrap().issued_as, None);
}

#[test]
fn profiles_have_certificates_and_rules_of_their_own() {
    let (folder, stranger) = (Folder::new(), Folder::new());
    let clients = folder.clients(true);
    let plan = ServerPlan {
        profiles: vec![
            Profile { identities: vec![folder.sign("b", &["b.test"])], ..Profile::default() },
            Profile { clients: Some(clients), min_version: MinVersion::Tls13, ..Profile::default() },
        ],
        ..server(vec![folder.sign("a", &["a.test", "c.test", "localhost"])])
    };
    let selector = || {
        Selector::new(|listener, name| match (listener, name) {
            (0, Some("b.test")) => 1,
            (0, Some("c.test")) => 2,
            (1, _) => 1,
            (2, _) => 7,
            _ => 0,
        })
    };
    let acceptor = Acceptor::open_with(plan.clone(), selector()).unwrap();
    assert_eq!(acceptor.rules(0), acceptor.rules(1), "they require the same");
    assert_ne!(acceptor.rules(0), acceptor.rules(2));
    assert_eq!(acceptor.rules(3), None);
    let identity = folder.sign("client", &["client.test"]);
    let known = ClientPlan { identity: Some(identity), ..folder.trusting() };
    let ends = |listener: u16, plan: &ClientPlan, name: &str| {
        let (one, other) = support::pair();
        let mut server = acceptor.accept(one.into(), listener).unwrap();
        let mut client = Connector::open(plan, name).unwrap().connect(other.into()).unwrap();
        for _ in 0..6 {
            client.shake();
            server.shake();
        }
        (server, client)
    };
    let outcome = |listener, plan: &ClientPlan, name: &str| {
        let (server, client) = ends(listener, plan, name);
        let fault = client.fault().or(server.fault());
        (fault.map_or("open".to_owned(), ToString::to_string), server.rules())
    };
    let open = |profile| ("open".to_owned(), acceptor.rules(profile));
    assert_eq!(outcome(0, &folder.trusting(), "a.test"), open(0));
    assert_eq!(outcome(0, &folder.trusting(), "b.test"), open(1));
    assert_eq!(outcome(0, &known, "c.test"), open(2));
    assert!(outcome(1, &folder.trusting(), "a.test").0.contains("another name: got b.test"));
    // A profile that does not exist is the first.
    assert_eq!(outcome(2, &folder.trusting(), "a.test"), open(0));
    assert_ne!(outcome(0, &folder.trusting(), "c.test").0, "open", "a certificate is required");
    let unknown = ClientPlan { identity: Some(stranger.sign("client", &["x"])), ..folder.trusting() };
    assert_ne!(outcome(0, &unknown, "c.test").0, "open");
    // The numbers of rules stay, also when a file has other contents.
    let authorities = |of: &flatout_tls::ClientCertificates| of.authorities.clone().unwrap();
    let more = std::fs::read_to_string(authorities(&stranger.clients(true))).unwrap();
    let file = authorities(plan.profiles[1].clients.as_ref().unwrap());
    let both = std::fs::read_to_string(&file).unwrap() + &more;
    std::fs::write(file, both).unwrap();
    let (before, changed) = ([acceptor.rules(0), acceptor.rules(2)], ServerPlan { early_data: true, ..plan });
    let prepared = acceptor.prepare(changed, selector()).unwrap();
    assert_eq!([prepared.rules(0), prepared.rules(2)], before);
    acceptor.replace(prepared);
    assert_eq!(outcome(0, &known, "c.test"), open(2));
}

#[test]
fn a_profile_is_chosen_when_the_whole_hello_has_arrived() {
    use std::io::{Read, Write};
    let folder = Folder::new();
    let plan =
        ServerPlan { profiles: vec![Profile::default()], ..server(vec![folder.sign("a", &["a.test"])]) };
    let acceptor = Acceptor::open_with(plan, Selector::new(|_, _| 1)).unwrap();
    // The ClientHello of a client whose peer is a plain socket.
    let (one, mut other) = support::pair();
    let mut client = Connector::open(&folder.trusting(), "a.test").unwrap().connect(one.into()).unwrap();
    client.shake();
    let mut hello = vec![0; 8 << 10];
    let bytes = other.read(&mut hello).unwrap();
    let (one, mut stream) = support::pair();
    let mut server = acceptor.accept(one.into(), 0).unwrap();
    for byte in &hello[..bytes - 1] {
        stream.write_all(&[*byte]).unwrap();
        assert_eq!(server.shake(), Shake::GoesOn);
        assert_eq!((server.rules(), server.protocol()), (None, None));
    }
    stream.write_all(&hello[bytes - 1..bytes]).unwrap();
    assert_eq!(server.shake(), Shake::GoesOn);
    assert_eq!(server.rules(), acceptor.rules(1));
    for garbage in
        [&b"GET / HTTP/1.1\r\n\r\n"[..], &[22, 3, 1, 0, 4, 2, 0, 0, 0], &[22, 3, 1, 0, 0, 22, 3, 1, 0, 0]]
    {
        let (one, mut stream) = support::pair();
        let mut server = acceptor.accept(one.into(), 0).unwrap();
        stream.write_all(garbage).unwrap();
        assert_eq!(server.shake(), Shake::Failed, "{garbage:?}");
        let mut alert = [0; 64];
        assert_eq!((stream.read(&mut alert).unwrap(), alert[0]), (7, 21), "{garbage:?}");
    }
}
