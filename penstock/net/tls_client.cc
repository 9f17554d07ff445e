#include "penstock/net/tls_client.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>

#include "penstock/base/error.h"

namespace penstock::net {
namespace {

constexpr char kTlsClient[] = "TLS";

std::string openssl_reason() {
  const unsigned long error = ERR_get_error();
  const char* text = error == 0 ? nullptr : ERR_reason_error_string(error);
  ERR_clear_error();
  return text == nullptr ? "an error without a reason" : text;
}

void require_file(bool loaded, const char* what, const std::string& path) {
  if (loaded) return;
  throw Error(Code::kInvalidArgument, kTlsClient,
              std::string("cannot use ") + what + " " + path + ": " + openssl_reason());
}

using Context = std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)>;

Context make_context(const TlsClientOptions& options) {
  Context owner(SSL_CTX_new(TLS_client_method()), &SSL_CTX_free);
  SSL_CTX* context = owner.get();
  if (context == nullptr || SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) != 1) {
    throw Error(Code::kSystem, kTlsClient, "OpenSSL cannot start: " + openssl_reason());
  }
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  if (options.ca.empty()) {
    require_file(SSL_CTX_set_default_verify_paths(context) == 1, "the system's certificates", "");
  } else {
    require_file(SSL_CTX_load_verify_file(context, options.ca.c_str()) == 1, "the CA file",
                 options.ca);
  }
  if (!options.certificate.empty()) {
    require_file(SSL_CTX_use_certificate_chain_file(context, options.certificate.c_str()) == 1,
                 "the certificate", options.certificate);
    const std::string& key = options.key.empty() ? options.certificate : options.key;
    require_file(SSL_CTX_use_PrivateKey_file(context, key.c_str(), SSL_FILETYPE_PEM) == 1,
                 "the private key", key);
  }
  return owner;
}

}  // namespace

void check_files(const TlsClientOptions& options) { make_context(options); }

TlsClient::TlsClient(int fd, const std::string& host, const TlsClientOptions& options)
    : host_(host), context_(make_context(options)), ssl_(SSL_new(context_.get()), &SSL_free) {
  // A host name is checked as one, and an address as one.
  X509_VERIFY_PARAM* verify = ssl_ == nullptr ? nullptr : SSL_get0_param(ssl_.get());
  if (verify == nullptr || SSL_set_fd(ssl_.get(), fd) != 1 ||
      (X509_VERIFY_PARAM_set1_ip_asc(verify, host.c_str()) != 1 &&
       (SSL_set1_host(ssl_.get(), host.c_str()) != 1 ||
        SSL_set_tlsext_host_name(ssl_.get(), host.c_str()) != 1))) {
    throw Error(Code::kSystem, kTlsClient, "OpenSSL cannot start: " + openssl_reason());
  }
  ERR_clear_error();
}

TlsClient::~TlsClient() = default;

TlsClient::Step TlsClient::wants(int result) {
  const int what = SSL_get_error(ssl_.get(), result);
  wants_write_ = what == SSL_ERROR_WANT_WRITE;
  if (what == SSL_ERROR_WANT_READ) return Step::kWantsRead;
  if (what == SSL_ERROR_WANT_WRITE) return Step::kWantsWrite;
  if (what == SSL_ERROR_ZERO_RETURN) return Step::kDone;
  fail(what == SSL_ERROR_SYSCALL ? "the connection was lost" : openssl_reason());
}

void TlsClient::fail(const std::string& what) {
  ERR_clear_error();
  throw Error(Code::kClosed, kTlsClient, host_ + ": " + what);
}

TlsClient::Step TlsClient::handshake() {
  ERR_clear_error();
  const int result = SSL_connect(ssl_.get());
  if (result == 1) return Step::kDone;
  const long verified = SSL_get_verify_result(ssl_.get());
  if (verified != X509_V_OK) {
    ERR_clear_error();
    throw Error(Code::kInvalidArgument, kTlsClient,
                "the certificate of " + host_ +
                    " is not trusted: " + X509_verify_cert_error_string(verified));
  }
  const Step step = wants(result);
  if (step == Step::kDone) fail("the server ended the connection");
  return step;
}

std::optional<size_t> TlsClient::read(std::span<std::byte> into) {
  ERR_clear_error();
  size_t bytes = 0;
  const int result = SSL_read_ex(ssl_.get(), into.data(), into.size(), &bytes);
  if (result == 1) return bytes;
  if (wants(result) == Step::kDone) return 0;
  return std::nullopt;
}

std::optional<size_t> TlsClient::write(std::span<const std::byte> from) {
  ERR_clear_error();
  size_t bytes = 0;
  const int result = SSL_write_ex(ssl_.get(), from.data(), from.size(), &bytes);
  if (result == 1) return bytes;
  if (wants(result) == Step::kDone) fail("the server ended the connection");
  return std::nullopt;
}

bool TlsClient::pending() const { return SSL_pending(ssl_.get()) > 0; }

}  // namespace penstock::net
