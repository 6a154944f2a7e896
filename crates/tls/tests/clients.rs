//! Client certificates that are revoked or unknown, and servers' certificates that are revoked.

mod support;

use flatout_tls::{Acceptor, ClientCertificates, ClientPlan, Connector, PeerCertificate, ServerPlan};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, GeneralSubtree, IsCa, Issuer, KeyPair, NameConstraints,
    SerialNumber,
};
use support::{Folder, server, shaken, write_private};

/// A certificate with this serial number, and its client.
fn client(folder: &Folder, file: &str, serial: u64, trusted: &Folder) -> ClientPlan {
    let change = |params: &mut CertificateParams| params.serial_number = Some(SerialNumber::from(serial));
    let identity = folder.sign_with(file, &["client.test"], change);
    ClientPlan { identity: Some(identity), ..trusted.trusting() }
}

/// The certificate that a server got, or `Err` if it refused the client.
fn certificate(acceptor: &Acceptor, plan: &ClientPlan) -> Result<Option<PeerCertificate>, String> {
    let (server, client) = shaken(acceptor, &Connector::open(plan, "localhost").unwrap());
    match server.fault().or(client.fault()) {
        Some(fault) => Err(fault.to_string()),
        None => Ok(server.client_certificate()),
    }
}

fn acceptor(folder: &Folder, clients: ClientCertificates) -> Acceptor {
    let identity = folder.sign("server", &["localhost"]);
    Acceptor::open(ServerPlan { clients: Some(clients), ..server(vec![identity]) }).unwrap()
}

#[test]
fn revoked_certificates_are_refused() {
    let (folder, other) = (Folder::new(), Folder::new());
    let (good, bad) = (client(&folder, "good", 1, &folder), client(&folder, "bad", 2, &folder));
    for required in [true, false] {
        let with = |list| ClientCertificates { revoked: Some(list), ..folder.clients(required) };
        let listed = acceptor(&folder, with(folder.revoke("list", &[2], 1)));
        assert!(certificate(&listed, &good).unwrap().unwrap().is_verified);
        assert!(certificate(&listed, &bad).unwrap_err().contains("evoked"));
        let expired = acceptor(&folder, with(folder.revoke("old", &[], -1)));
        assert!(
            certificate(&expired, &good).is_err(),
            "a list that has expired says nothing about revocation"
        );
        let foreign = acceptor(&folder, with(other.revoke("other", &[], 1)));
        assert!(certificate(&foreign, &good).is_err(), "no list says that it is not revoked");
    }
    let clients = ClientCertificates { revoked: Some(folder.authority()), ..folder.clients(true) };
    let plan = ServerPlan { clients: Some(clients), ..server(vec![folder.sign("server", &["localhost"])]) };
    assert!(Acceptor::open(plan).unwrap_err().contains("BEGIN X509 CRL"));
}

#[test]
fn a_revoked_server_is_not_trusted() {
    let folder = Folder::new();
    let change = |params: &mut CertificateParams| params.serial_number = Some(SerialNumber::from(7));
    let acceptor = Acceptor::open(server(vec![folder.sign_with("server", &["localhost"], change)])).unwrap();
    let trusting = |serials: &[u64]| ClientPlan {
        revoked: Some(folder.revoke("list", serials, 1)),
        ..folder.trusting()
    };
    assert_eq!(certificate(&acceptor, &trusting(&[6])), Ok(None));
    assert!(certificate(&acceptor, &trusting(&[7])).unwrap_err().contains("evoked"));
}

#[test]
fn unknown_certificates_are_accepted_but_not_verified() {
    let (folder, stranger) = (Folder::new(), Folder::new());
    let clients = ClientCertificates { takes_unknown: true, ..folder.clients(false) };
    let revoked = Some(folder.revoke("list", &[2], 1));
    let lenient = acceptor(&folder, ClientCertificates { revoked, ..clients.clone() });
    let verified = |acceptor: &Acceptor, plan: &ClientPlan| {
        certificate(acceptor, plan).map(|it| it.map(|certificate| certificate.is_verified))
    };
    let (known, unknown) = (client(&folder, "known", 1, &folder), client(&stranger, "unknown", 1, &folder));
    assert_eq!(verified(&lenient, &folder.trusting()), Ok(None));
    assert_eq!(verified(&lenient, &known), Ok(Some(true)));
    assert_eq!(verified(&lenient, &unknown), Ok(Some(false)));
    assert!(verified(&lenient, &client(&folder, "bad", 2, &folder)).is_err(), "it is known to be revoked");
    let any = acceptor(&folder, ClientCertificates { authorities: None, ..clients.clone() });
    assert_eq!(verified(&any, &known), Ok(Some(false)), "nothing verifies it");
    // The same for a session that is resumed.
    let connector = Connector::open(&unknown, "localhost").unwrap();
    for is_resumed in [false, true] {
        let (server, mut client) = shaken(&lenient, &connector);
        client.receive(&mut [0; 1]);
        assert_eq!(
            (server.is_resumed(), server.client_certificate().unwrap().is_verified),
            (is_resumed, false)
        );
    }
    let required = acceptor(&folder, ClientCertificates { required: true, ..clients });
    assert!(verified(&required, &folder.trusting()).is_err());
    assert_eq!(verified(&required, &unknown), Ok(Some(false)));
}

#[test]
fn certificates_that_violate_rules_are_not_unknown_ones() {
    let folder = Folder::new();
    let own = folder.sign("own", &["own.test"]);
    // A CA that may issue certificates for some names only.
    let mut params = CertificateParams::new([]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let permitted_subtrees = vec![GeneralSubtree::DnsName("good.test".to_owned())];
    params.name_constraints = Some(NameConstraints { permitted_subtrees, excluded_subtrees: Vec::new() });
    params.distinguished_name.push(DnType::CommonName, "limited");
    let key = KeyPair::generate().unwrap();
    let authority = folder.path().join("limited.pem");
    std::fs::write(&authority, params.self_signed(&key).unwrap().pem()).unwrap();
    let limited = Issuer::new(params, key);
    let acceptor = acceptor(
        &folder,
        ClientCertificates { takes_unknown: true, authorities: Some(authority), ..folder.clients(true) },
    );
    let showing = |pem: String, key: &KeyPair| {
        std::fs::write(&own.certificate, pem).unwrap();
        write_private(&own.key, &key.serialize_pem());
        let plan = ClientPlan { identity: Some(own.clone()), ..folder.trusting() };
        certificate(&acceptor, &plan).map(|it| it.unwrap().is_verified)
    };
    let key = KeyPair::generate().unwrap();
    let of = |name: &str| CertificateParams::new([name.to_owned()]).unwrap();
    assert_eq!(showing(of("good.test").signed_by(&key, &limited).unwrap().pem(), &key), Ok(true));
    assert!(showing(of("bad.test").signed_by(&key, &limited).unwrap().pem(), &key).is_err());
    // A CA that shows its own certificate.
    let mut params = of("own.test");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    assert_eq!(showing(params.self_signed(&key).unwrap().pem(), &key), Ok(false));
}

#[test]
fn without_authorities_nothing_is_verified_by_mistake() {
    let folder = Folder::new();
    let plan = ServerPlan {
        clients: Some(ClientCertificates::default()),
        ..server(vec![folder.sign("server", &["localhost"])])
    };
    assert!(Acceptor::open(plan).unwrap_err().contains("need the certificates of their CAs"));
}
