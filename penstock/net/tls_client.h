#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>

struct ssl_ctx_st;
struct ssl_st;

namespace penstock::net {

// How a client trusts a server, for servers with certificates.
struct TlsClientOptions {
  std::string ca;           // a file of certificates (PEM); empty: the system's
  std::string certificate;  // the client's own (PEM); empty: none
  std::string key;          // its private key (PEM)
};

// Error kInvalidArgument: a file cannot be read, or is not what it should be.
void check_files(const TlsClientOptions& options);

// The client's end of TLS 1.2 or 1.3 over a non-blocking socket, to a server with a certificate for
// its host name. Connections of penstock's own processes use a shared secret instead (tls.h).
//
// Threads: one at a time. Writing to a socket that was closed raises SIGPIPE, as write() does:
// block the signal.
class TlsClient {
 public:
  enum class Step { kDone, kWantsRead, kWantsWrite };

  // Uses `fd`, which must outlive it. Errors: kNotFound, kInvalidArgument (files).
  TlsClient(int fd, const std::string& host, const TlsClientOptions& options);
  ~TlsClient();
  TlsClient(const TlsClient&) = delete;
  TlsClient& operator=(const TlsClient&) = delete;

  // Errors: kInvalidArgument (the certificate is not trusted, or of another host), kClosed.
  Step handshake();

  // The number of bytes; 0: the other end has closed; nullopt: call again when the socket is ready
  // (wants_write() says for what). Error kClosed.
  std::optional<size_t> read(std::span<std::byte> into);
  std::optional<size_t> write(std::span<const std::byte> from);
  bool wants_write() const { return wants_write_; }
  // Decrypted bytes are waiting, so the socket may not become readable.
  bool pending() const;

 private:
  Step wants(int result);
  [[noreturn]] void fail(const std::string& what);

  const std::string host_;
  std::unique_ptr<ssl_ctx_st, void (*)(ssl_ctx_st*)> context_;
  std::unique_ptr<ssl_st, void (*)(ssl_st*)> ssl_;
  bool wants_write_ = false;
};

}  // namespace penstock::net
