#include "penstock/net/tls.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "penstock/base/error.h"

namespace penstock::net {
namespace {

constexpr char kTls[] = "TLS";
constexpr char kIdentity[] = "penstock";
constexpr size_t kBufferBytes = 128 * 1024;
constexpr size_t kRecord = 16 * 1024;
// Half of what one AES-GCM key may encrypt (RFC 8446, 5.5: 2^24.5 records).
constexpr uint64_t kMaxRecords = uint64_t{1} << 23;
// Both with SHA-256: a pre-shared key is bound to one hash.
constexpr char kSuites[] = "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256";
constexpr unsigned char kAes128Gcm[] = {0x13, 0x01};

std::string reason() {
  const unsigned long error = ERR_peek_last_error();
  const char* text = error == 0 ? nullptr : ERR_reason_error_string(error);
  std::string result;
  if (text != nullptr) result.append(": ").append(text);
  return result;
}

[[noreturn]] void cannot(const char* what) {
  throw Error(Code::kSystem, kTls, std::string("OpenSSL cannot ") + what + reason());
}

}  // namespace

// C callbacks of OpenSSL: no exception may leave them.
struct Tls::Callbacks {
  static Tls& of(BIO* bio) { return *static_cast<Tls*>(BIO_get_data(bio)); }

  static int write(BIO* bio, const char* from, size_t bytes, size_t* written) {
    Tls& tls = of(bio);
    BIO_clear_retry_flags(bio);
    const auto* first = reinterpret_cast<const std::byte*>(from);
    try {
      tls.out_.insert(tls.out_.end(), first, first + bytes);
    } catch (const std::bad_alloc&) {
      return 0;
    }
    *written = bytes;
    return 1;
  }

  static int read(BIO* bio, char* into, size_t bytes, size_t* got) {
    Tls& tls = of(bio);
    BIO_clear_retry_flags(bio);
    *got = std::min(bytes, tls.end_ - tls.begin_);
    if (*got == 0) {
      BIO_set_retry_read(bio);
      return 0;
    }
    std::memcpy(into, tls.in_.data() + tls.begin_, *got);
    tls.begin_ += *got;
    return 1;
  }

  static long control(BIO*, int what, long, void*) { return what == BIO_CTRL_FLUSH ? 1 : 0; }

  static BIO_METHOD* method() {
    static BIO_METHOD* const made = [] {
      BIO_METHOD* method_of_tls =
          BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, kIdentity);
      if (method_of_tls == nullptr) cannot("make a BIO");
      BIO_meth_set_write_ex(method_of_tls, write);
      BIO_meth_set_read_ex(method_of_tls, read);
      BIO_meth_set_ctrl(method_of_tls, control);
      return method_of_tls;
    }();
    return made;
  }

  // A TLS session that represents the pre-shared key.
  static SSL_SESSION* session(SSL* ssl) {
    const Tls& tls = *static_cast<const Tls*>(SSL_get_app_data(ssl));
    SSL_SESSION* made = SSL_SESSION_new();
    if (made != nullptr && SSL_SESSION_set1_master_key(made, tls.key_.data(), Key::kBytes) == 1 &&
        SSL_SESSION_set_cipher(made, SSL_CIPHER_find(ssl, kAes128Gcm)) == 1 &&
        SSL_SESSION_set_protocol_version(made, TLS1_3_VERSION) == 1) {
      return made;
    }
    SSL_SESSION_free(made);
    return nullptr;
  }
  static int use(SSL* ssl, const EVP_MD*, const unsigned char** id, size_t* bytes,
                 SSL_SESSION** found) {
    *id = reinterpret_cast<const unsigned char*>(kIdentity);
    *bytes = sizeof(kIdentity) - 1;
    *found = session(ssl);
    return *found != nullptr;
  }
  static int find(SSL* ssl, const unsigned char* id, size_t bytes, SSL_SESSION** found) {
    const bool known = bytes == sizeof(kIdentity) - 1 && std::memcmp(id, kIdentity, bytes) == 0;
    *found = known ? session(ssl) : nullptr;
    return 1;
  }

  static ssl_st* make(Tls& tls, Side side) {
    // No cleanup at exit: threads of a server may still use OpenSSL then.
    static const bool started = OPENSSL_init_ssl(OPENSSL_INIT_NO_ATEXIT, nullptr) == 1;
    if (!started) cannot("start");
    const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> of(SSL_CTX_new(TLS_method()),
                                                               &SSL_CTX_free);
    if (!of || SSL_CTX_set_min_proto_version(of.get(), TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_ciphersuites(of.get(), kSuites) != 1 ||
        SSL_CTX_set_num_tickets(of.get(), 0) != 1) {
      cannot("speak TLS 1.3");
    }
    SSL_CTX_set_session_cache_mode(of.get(), SSL_SESS_CACHE_OFF);
    std::unique_ptr<SSL, decltype(&SSL_free)> ssl(SSL_new(of.get()), &SSL_free);
    BIO* bio = BIO_new(method());
    if (!ssl || bio == nullptr) {
      BIO_free(bio);
      cannot("make a TLS connection");
    }
    BIO_set_data(bio, &tls);
    BIO_set_init(bio, 1);
    SSL_set_bio(ssl.get(), bio, bio);
    SSL_set_app_data(ssl.get(), &tls);
    if (side == Side::kServer) {
      SSL_set_psk_find_session_callback(ssl.get(), find);
      SSL_set_accept_state(ssl.get());
    } else {
      SSL_set_psk_use_session_callback(ssl.get(), use);
      SSL_set_connect_state(ssl.get());
    }
    return ssl.release();
  }
};

Tls::Tls(Side side, const Key& key, std::string peer)
    : peer_(std::move(peer)), key_(key), in_(kBufferBytes) {
  ERR_clear_error();
  ssl_ = Callbacks::make(*this, side);
}

Tls::~Tls() { SSL_free(ssl_); }

void Tls::fail(const char* what) const {
  throw Error(Code::kDataLoss, kTls, "the data from " + peer_ + " " + what + reason());
}

bool Tls::handshake() {
  const std::lock_guard lock(mutex_);
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_);
  if (result != 1) {
    if (SSL_get_error(ssl_, result) == SSL_ERROR_WANT_READ) return false;
    fail("is no valid handshake: the key differs, or the data was changed");
  }
  if (SSL_session_reused(ssl_) != 1) fail("was sent without the key");
  key_ = Key();
  return true;
}

void Tls::encrypt(std::span<const std::byte> plain) {
  if (plain.empty()) return;
  const std::lock_guard lock(mutex_);
  ERR_clear_error();
  const uint64_t records = (plain.size() + kRecord - 1) / kRecord;
  if (records_ + records > kMaxRecords) {
    if (SSL_key_update(ssl_, SSL_KEY_UPDATE_NOT_REQUESTED) != 1) cannot("renew the key");
    records_ = 0;
  }
  records_ += records;
  size_t written = 0;
  if (SSL_write_ex(ssl_, plain.data(), plain.size(), &written) != 1) cannot("encrypt");
}

void Tls::renew_key() {
  const std::lock_guard lock(mutex_);
  records_ = kMaxRecords;
}

size_t Tls::read(std::span<std::byte> into) {
  const std::lock_guard lock(mutex_);
  ERR_clear_error();
  size_t got = 0;
  const int result = SSL_read_ex(ssl_, into.data(), into.size(), &got);
  if (result == 1) return got;
  if (SSL_get_error(ssl_, result) != SSL_ERROR_WANT_READ) fail("was changed in transit");
  return 0;
}

void Tls::take_outgoing(std::vector<std::byte>& out) {
  const std::lock_guard lock(mutex_);
  if (out.empty()) {
    out.swap(out_);
  } else {
    out.insert(out.end(), out_.begin(), out_.end());
  }
  out_.clear();
}

std::span<std::byte> Tls::receive_buffer() {
  const std::lock_guard lock(mutex_);
  std::memmove(in_.data(), in_.data() + begin_, end_ - begin_);
  end_ -= begin_;
  begin_ = 0;
  return std::span(in_).subspan(end_);
}

void Tls::received(size_t bytes) {
  const std::lock_guard lock(mutex_);
  end_ += bytes;
}

bool Tls::pending() const {
  const std::lock_guard lock(mutex_);
  return end_ > begin_ || SSL_has_pending(ssl_) == 1;
}

}  // namespace penstock::net
