#pragma once

#include <memory>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/net/connection.h"

namespace penstock::python {

// A connection between a Loader and workers on another host, for Python. Threads: as
// net::Connection; take() when no other thread uses it.
class RemoteConnection {
 public:
  explicit RemoteConnection(std::unique_ptr<net::Connection> connection)
      : connection_(std::move(connection)) {}

  // Error kClosed: it was taken.
  net::Connection& get() const {
    if (connection_ == nullptr) throw Error(Code::kClosed, "remote", "the connection was taken");
    return *connection_;
  }
  std::unique_ptr<net::Connection> take() {
    get();
    return std::move(connection_);
  }

 private:
  std::unique_ptr<net::Connection> connection_;
};

}  // namespace penstock::python
